"""From what a request asks for to a grammar in llguidance's notation, with limits on size, depth and time."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, cast

import msgspec

from pellucid.sampling.params import StructuredOutputsParams
from pellucid.structured.dates import with_days_that_exist
from pellucid.structured.errors import ConstraintError

COMPILE_TIMEOUT_S = 10.0  # how long a request waits for its grammar; the compiler's work is bounded besides
MAX_SOURCE_BYTES = 128 * 1024  # of a schema, a grammar, or all choices together
MAX_REGEX_BYTES = 16 * 1024
MAX_CHOICES = 2048
MAX_DEPTH = 48  # of a schema's objects and arrays
# What the compiler would follow without counting: each of these takes it milliseconds at the bound, and then grows
# faster than the source does, or nests deeper than a thread's stack.
MAX_REFERENCES = 256  # "$ref" in a schema
MAX_RULES = 512  # of a grammar
MAX_DIVISOR = 10_000  # of multipleOf, without its decimal point: 0.25 counts as 25

# Between two tokens of JSON: nothing, a space, or a line break and an indentation. Without a bound, a small model that
# has lost its way writes white space until it is cut off.
JSON_OPTIONS: dict[str, Any] = {
    "whitespace_flexible": True,
    "whitespace_pattern": r"[ ]?|\n[ \t]{0,32}",
    "lenient": False,
    "coerce_one_of": False,
}

# a number that Python refuses to read for its length is not for that reason one the compiler would not read
_SCHEMA_DECODER = json.JSONDecoder(parse_int=lambda digits: int(digits) if len(digits) < 32 else float(digits))
_RULE = re.compile(r"^\s*[?!]?\w+(\[.*?\])?(\.-?\d+)?\s*:", re.MULTILINE)


def kind_of(constraint: StructuredOutputsParams) -> str:
    """Which of its fields is set."""
    fields = constraint.__struct_fields__
    return next(name for name in fields if getattr(constraint, name) not in (None, False))


def grammar_of(constraint: StructuredOutputsParams) -> str:
    r"""The grammar as llguidance takes it; whether it makes sense only shows when it is compiled. In a regex, \d, \w
    and \s are ASCII, as in JSON Schema.

    Raises ConstraintError for what is too large, too deep, or no JSON where JSON is meant.
    """
    from llguidance import LLMatcher, regex_to_lark

    kind = kind_of(constraint)
    if kind == "json_object":
        return _json_grammar('{"type":"object"}')
    if kind == "json":
        return _json_grammar(checked_schema(constraint.json or ""))
    if kind == "regex":
        regex = constraint.regex or ""
        _check_size("regex", len(regex.encode()), MAX_REGEX_BYTES)
        if (len(regex) - len(regex.rstrip("\\"))) % 2:  # the conversion would drop it without a word
            raise ConstraintError("regex", "invalid regex: it ends with a backslash that escapes nothing")
        return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(regex, 'dws')}/")
    if kind == "choice":
        return LLMatcher.grammar_from_lark(_one_of(constraint.choice or ()))
    source = constraint.grammar or ""
    _check_size("grammar", len(source.encode()), MAX_SOURCE_BYTES)
    lark = _as_lark(source)
    _check_lark(lark)
    return LLMatcher.grammar_from_lark(lark)


def _json_grammar(schema: str) -> str:
    """JSON_OPTIONS win over a schema's own x-guidance."""
    from llguidance import LLMatcher

    if '"date' in schema:
        schema = json.dumps(with_days_that_exist(msgspec.json.decode(schema)))
    return LLMatcher.grammar_from_json_schema(schema, overrides=cast(Any, JSON_OPTIONS))


def json_in_lark(schema: Any) -> str:
    """A JSON schema as a term of a Lark grammar (`%json {...}`), with the white space that every JSON has here."""
    schema = {} if schema is True else with_days_that_exist(schema)
    return "%json " + json.dumps({**schema, "x-guidance": JSON_OPTIONS})


def _check_size(kind: str, num_bytes: int, limit: int) -> None:
    if num_bytes > limit:
        raise ConstraintError(kind, f"it has {num_bytes} bytes, and at most {limit} are taken")


def checked_schema(source: str) -> str:
    """The JSON text of a schema, as the compiler takes it: an object. Raises ConstraintError."""
    _check_size("json", len(source.encode()), MAX_SOURCE_BYTES)
    try:
        schema = msgspec.json.decode(source)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        detail = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConstraintError("json", f"a JSON schema is wanted, and this is no JSON: {detail}") from None
    if not isinstance(schema, (dict, bool)):
        raise ConstraintError("json", f"a JSON schema is an object, not {type(schema).__name__}")
    _check_schema("json", schema)
    return source if isinstance(schema, dict) else "{}" if schema else '{"enum": []}'


def _check_schema(kind: str, schema: Any) -> None:
    level, depth, num_references = [schema], 0, 0
    while level:
        depth += 1
        objects = [item for item in level if isinstance(item, dict)]
        num_references += sum("$ref" in item for item in objects)
        for item in objects:
            _check_divisor(kind, item.get("multipleOf"))
        children = [child for item in objects for child in item.values()]
        children += [child for item in level if isinstance(item, list) for child in item]
        level = [child for child in children if isinstance(child, (dict, list))]
    if depth > MAX_DEPTH:
        raise ConstraintError(kind, f"it is nested {depth} levels deep, and at most {MAX_DEPTH} are taken")
    if num_references > MAX_REFERENCES:
        raise ConstraintError(kind, f"it holds {num_references} $ref, and at most {MAX_REFERENCES} are taken")


def _check_divisor(kind: str, divisor: Any) -> None:
    if isinstance(divisor, (int, float)) and not isinstance(divisor, bool):
        digits = format(Decimal(str(divisor)).normalize(), "f").replace(".", "").lstrip("0")
        if len(digits) > len(str(MAX_DIVISOR)) or int(digits or 0) > MAX_DIVISOR:
            message = f"multipleOf: {divisor} is not taken; without its decimal point it may be up to {MAX_DIVISOR}"
            raise ConstraintError(kind, message)


def _check_lark(source: str) -> None:
    num_rules = len(_RULE.findall(source))
    if num_rules > MAX_RULES:
        raise ConstraintError("grammar", f"it has {num_rules} rules, and at most {MAX_RULES} are taken")
    # Also a "%json" within a schema, or in a text, is looked at; one that no JSON follows there is a word like others,
    # and the compiler refuses it elsewhere.
    for part in source.split("%json")[1:]:
        try:
            schema, _ = _SCHEMA_DECODER.raw_decode(part.lstrip())
        except RecursionError:
            raise ConstraintError("grammar", "the schema after %json is nested too deeply") from None
        except ValueError:
            continue
        _check_schema("grammar", schema)


def _one_of(choices: tuple[str, ...]) -> str:
    if not choices:
        raise ConstraintError("choice", "it is empty: at least one choice is needed")
    if len(choices) > MAX_CHOICES:
        raise ConstraintError("choice", f"it has {len(choices)} entries, and at most {MAX_CHOICES} are taken")
    _check_size("choice", sum(len(choice.encode()) for choice in choices), MAX_SOURCE_BYTES)
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in dict.fromkeys(choices))


def _as_lark(source: str) -> str:
    """GBNF (llama.cpp's notation, with ::=) becomes Lark; Lark stays as it is."""
    if "::=" not in source:
        return source
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(source)
    except RecursionError:
        raise ConstraintError("grammar", "it is nested too deeply") from None
    except Exception as error:  # the converter has exceptions of its own, and lets others through
        raise ConstraintError("grammar", f"this GBNF cannot be read: {error}") from None
