"""What a tool's JSON schema says of one argument, for formats that write values without saying what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pellucid.frontend.parsing.json_text import kind_of
from pellucid.frontend.tools import JsonObject, Tool

_MAX_REFERENCES = 16


def argument_schemas(tools: Sequence[Tool]) -> dict[str, JsonObject]:
    """Tool -> the schemas of its arguments by name, references into the tool's own definitions resolved."""
    return {tool.name: properties_of(tool) for tool in tools}


def properties_of(tool: Tool) -> JsonObject:
    properties = tool.schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    found = {name: resolved(schema, tool.schema) for name, schema in properties.items()}
    return {name: {} if schema is True else schema for name, schema in found.items()}


def resolved(schema: Any, root: JsonObject) -> Any:
    """A schema that is only a reference as what it refers to."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: Any = root
        for step in reference[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if not isinstance(found, (dict, bool)):  # it leads nowhere: a compiler says so, where there is one
            break
        schema = found
    return schema


def is_text(schema: Any) -> bool:
    """Whether a value can be nothing but a string; also where nothing is known of it."""
    if not isinstance(schema, dict):
        return schema is not False
    if "$ref" in schema:
        return False
    kinds = schema.get("type")
    if kinds is not None:
        return kinds in ("string", ["string"])
    if "const" in schema or "enum" in schema:
        return all(isinstance(value, str) for value in schema.get("enum", [schema.get("const")]))
    branches = [branch for key in ("anyOf", "oneOf") for branch in schema.get(key) or ()]
    return all(map(is_text, branches))


def allows(schema: Any, kind: str) -> bool:
    """Whether a value of that JSON type ("integer" is a "number" too) can fit; True where nothing is known of it."""
    if not isinstance(schema, dict):
        return True
    kinds = schema.get("type")
    if kinds is not None:
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return kind in kinds or (kind == "integer" and "number" in kinds)
    if "const" in schema or "enum" in schema:
        return any(kind_of(value) == kind for value in schema.get("enum", [schema.get("const")]))
    branches = [branch for key in ("anyOf", "oneOf") for branch in schema.get(key) or ()]
    return not branches or any(allows(branch, kind) for branch in branches)
