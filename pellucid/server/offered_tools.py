"""The one place where a dialect's tool becomes a Tool: what is read of its schema later on is checked here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from pellucid.frontend.parsing.schema_types import resolved
from pellucid.server.conversation import JsonObject, Tool
from pellucid.server.errors import ApiError, invalid, shorten

_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,256}")  # what every format of calls can write and read back


def offered_tool(
    name: str, description: str | None, parameters: Any, *, strict: bool, param: str, name_param: str | None = None
) -> Tool:
    """param: the field of the parameters, name_param: that of the name. Raises ApiError for a name that no call could
    be read back with, and for parameters that are no schema of an object.

    The whole of a schema is looked at where decoding is held to it. This is about the parts that formats read without
    a compiler: the object, its arguments, and the alternatives of these.
    """
    if _NAME.fullmatch(name) is None:
        name_param = name_param or param
        raise invalid(
            f"Invalid '{name_param}': String should match pattern '^{_NAME.pattern}$', got '{shorten(name)}'.",
            param=name_param,
        )
    if parameters is not None and (fault := next(_faults(parameters), None)) is not None:
        raise _invalid_schema(name, fault, param)
    return Tool(name, description, parameters, strict)


def _invalid_schema(name: str, fault: str, param: str) -> ApiError:
    return invalid(
        f"Invalid schema for function '{shorten(name)}': {fault}.", code="invalid_function_parameters", param=param
    )


def _faults(schema: Any) -> Iterator[str]:
    """Of the parameters of a tool, in words."""
    if not isinstance(schema, dict):
        yield f"schema must be a JSON Schema of 'type: \"object\"', got {shorten(str(schema))}"
        return
    if (kind := schema.get("type", "object")) != "object":
        yield f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{shorten(str(kind))}\"'"
    yield from _misfits(schema, {"required": _is_list_of_strings, "properties": _is_map_of_schemas}, "")
    if isinstance(properties := schema.get("properties"), dict):
        for key, argument in properties.items():
            yield from _argument_faults(resolved(argument, schema), f" of argument '{shorten(key)}'")


def _argument_faults(schema: Any, place: str) -> Iterator[str]:
    """Of an argument's schema and its alternatives."""
    level = [schema]
    while level:
        schemas = [found for found in level if isinstance(found, dict)]
        for found in schemas:
            yield from _misfits(found, _ARGUMENT_WORDS, place)
        level = [branch for found in schemas for word in ("anyOf", "oneOf") for branch in found.get(word, ())]


def _misfits(schema: JsonObject, words: dict[str, Callable[[Any], bool]], place: str) -> Iterator[str]:
    for word, fits in words.items():
        if word in schema and not fits(schema[word]):
            yield f"'{word}'{place} has to be {_WANTED[fits]}, got {shorten(str(schema[word]))}"


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _is_map_of_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_list_of_schemas(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_schema, value))


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_type(value: Any) -> bool:
    return isinstance(value, str) or _is_list_of_strings(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_ARGUMENT_WORDS: dict[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": _is_list,
    "anyOf": _is_list_of_schemas,
    "oneOf": _is_list_of_schemas,
    "pattern": _is_string,
    "minLength": _is_length,
    "maxLength": _is_length,
}
_WANTED: dict[Callable[[Any], bool], str] = {
    _is_map_of_schemas: "an object of schemas",
    _is_list_of_schemas: "an array of schemas",
    _is_list_of_strings: "an array of strings",
    _is_type: "a string or an array of strings",
    _is_list: "an array",
    _is_string: "a string",
    _is_length: "a non-negative integer",
}
