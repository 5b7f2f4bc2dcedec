"""Prompts and lists of token ids, checked a list at a time: they may be long, and pydantic takes each id by itself.

The errors have pydantic's names, and in their context `place`: where in the value the fault is.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_PROMPTS = 2048

_TOKEN_IDS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_NOT_EMPTY = {**_TOKEN_IDS_SCHEMA, "minItems": 1}
_PROMPTS = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS}
_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {**_PROMPTS, "items": {"type": "string"}},
        _NOT_EMPTY,
        {**_PROMPTS, "items": _NOT_EMPTY},
    ]
}


def _wrong_type(wanted: str, *place: int) -> PydanticCustomError:
    return PydanticCustomError("wrong_type", "not {wanted}", {"place": place, "wanted": wanted})


def _empty(*place: int) -> PydanticCustomError:
    return PydanticCustomError("too_short", "empty", {"place": place, "min_length": 1})


def _check_token_ids(value: Any, *place: int, at_least_one: bool = False) -> list[int]:
    if not isinstance(value, list):
        raise _wrong_type("an array" if place or not at_least_one else "one of a string or an array", *place)
    if at_least_one and not value:
        raise _empty(*place)
    if not set(map(type, value)) <= {int}:
        i = next(i for i, item in enumerate(value) if type(item) is not int)
        raise _wrong_type("an integer", *place, i)
    if value and min(value) < 0:
        i = next(i for i, item in enumerate(value) if item < 0)
        raise PydanticCustomError("greater_than_equal", "below 0", {"place": (*place, i), "ge": 0})
    return value


def _check_token_id_list(value: Any) -> list[int]:
    return _check_token_ids(value)


def _check_prompt(value: Any) -> str | list[int]:
    return value if isinstance(value, str) else _check_token_ids(value, at_least_one=True)


def _check_prompts(value: Any) -> str | list[str] | list[int] | list[list[int]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _wrong_type("one of a string or an array")
    if not value:
        raise _empty()
    first = value[0]
    if not isinstance(first, (str, list)):
        if isinstance(first, int) and not isinstance(first, bool):
            return _check_token_ids(value)
        raise _wrong_type("one of a string, an integer or an array", 0)
    if len(value) > MAX_PROMPTS:
        raise PydanticCustomError("too_long", "too many", {"place": (), "max_length": MAX_PROMPTS})
    for i, item in enumerate(value):
        if isinstance(first, list):
            _check_token_ids(item, i, at_least_one=True)
        elif not isinstance(item, str):
            raise _wrong_type("a string", i)
    return value


TokenIds = Annotated[list[int], PlainValidator(_check_token_id_list), WithJsonSchema(_TOKEN_IDS_SCHEMA)]
Prompt = Annotated[
    str | list[int], PlainValidator(_check_prompt), WithJsonSchema({"anyOf": [{"type": "string"}, _NOT_EMPTY]})
]
Prompts = Annotated[
    str | list[str] | list[int] | list[list[int]], PlainValidator(_check_prompts), WithJsonSchema(_PROMPT_SCHEMA)
]
