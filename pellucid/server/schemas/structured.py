"""Constraints on output: OpenAI's response_format, and structured_outputs as vLLM names its kinds."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import Field

from pellucid.sampling.params import StructuredOutputsParams
from pellucid.server.schemas.common import JsonObject, StrictModel


class StructuredOutputs(StrictModel):
    """Exactly one of these; null is the same as not given."""

    json_schema: JsonObject | str | None = Field(None, alias="json", description="A JSON schema, or its text.")
    json_object: bool | None = Field(None, description="Any JSON object.")
    regex: str | None = Field(None, description="The whole output matches it.")
    choice: list[str] | None = Field(None, description="The output is one of these.")
    grammar: str | None = Field(None, description="In Lark's notation (as llguidance has it), or GBNF.")

    def constraint(self) -> StructuredOutputsParams:
        return StructuredOutputsParams(
            json=_as_text(self.json_schema),
            json_object=bool(self.json_object),
            regex=self.regex,
            choice=None if self.choice is None else tuple(self.choice),
            grammar=self.grammar,
        )


class ConstraintFields(StrictModel):
    structured_outputs: StructuredOutputs | None = None


class JsonSchema(StrictModel):
    """strict: the output fits the schema in any case."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None


class TextFormat(StrictModel):
    type: Literal["text"]

    def constraint(self) -> None:
        return None


class JsonObjectFormat(StrictModel):
    type: Literal["json_object"]

    def constraint(self) -> StructuredOutputsParams:
        return StructuredOutputsParams(json_object=True)


class JsonSchemaFormat(StrictModel):
    type: Literal["json_schema"]
    json_schema: JsonSchema

    def constraint(self) -> StructuredOutputsParams:
        return StructuredOutputsParams(json=_as_text(self.json_schema.schema_ or {}))


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


def _as_text(schema: JsonObject | str | None) -> str | None:
    return schema if schema is None or isinstance(schema, str) else msgspec.json.encode(schema).decode()
