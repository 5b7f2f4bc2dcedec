"""A function that a model may call, as every room above the engine speaks of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A function the model may call."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None  # JSON schema; None: takes no arguments
    strict: bool = False  # the arguments always fit the schema

    @property
    def schema(self) -> JsonObject:
        """Of the arguments; always one of an object."""
        return {"type": "object", "properties": {}, **(self.parameters or {})}

    def as_templates_read_it(self) -> JsonObject:
        function = {"name": self.name, "description": self.description or "", "parameters": self.schema}
        return {"type": "function", "function": function}
