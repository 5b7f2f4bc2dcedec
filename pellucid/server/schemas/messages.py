"""POST /v1/messages and /v1/messages/count_tokens: the request, as Anthropic defines it.

Clients of this dialect send fields of betas that nobody else knows. A key that is not known is therefore no error here:
it stays in the model's extras, and `unknown_fields` names it for the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from pellucid.server.schemas.common import JsonObject

MAX_MESSAGES = 100_000  # Anthropic's own
MAX_STOP_SEQUENCES = 64
MAX_TOOLS = 1024


class OpenModel(BaseModel):
    """Types are checked strictly; keys that are not known are kept apart."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


class TextBlock(OpenModel):
    type: Literal["text"]
    text: str
    cache_control: JsonObject | None = None
    citations: Any = None


class ThinkingBlock(OpenModel):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(OpenModel):
    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(OpenModel):
    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    input: JsonObject
    cache_control: JsonObject | None = None


class DocumentBlock(OpenModel):
    """Read where its source is text."""

    type: Literal["document"]
    source: JsonObject
    title: str | None = None
    context: str | None = None
    cache_control: JsonObject | None = None


class OtherBlock(OpenModel):
    """A kind that Anthropic may know and no model here can read; refused by its name, with its place."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str


def _one_of(*kinds: str) -> Discriminator:
    """Tells blocks apart by their type; what is none of these kinds is an OtherBlock."""

    def tag(value: Any) -> str:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return kind if kind in kinds else "other"

    return Discriminator(tag)


ResultPart = Annotated[
    Annotated[TextBlock, Tag("text")] | Annotated[DocumentBlock, Tag("document")] | Annotated[OtherBlock, Tag("other")],
    _one_of("text", "document"),
]


class ToolResultBlock(OpenModel):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[ResultPart] | None = None
    is_error: bool | None = None
    cache_control: JsonObject | None = None


Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[DocumentBlock, Tag("document")]
    | Annotated[OtherBlock, Tag("other")],
    _one_of("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "document"),
]


class Message(OpenModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(OpenModel):
    """type: None or "custom" for a function of the client's; any other names a tool that Anthropic runs or defines."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    type: str | None = None
    description: str | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None
    cache_control: JsonObject | None = None


class ToolChoice(OpenModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(OpenModel):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None


class OutputFormat(OpenModel):
    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(OpenModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(OpenModel):
    user_id: Annotated[str, Field(max_length=4096)] | None = None


class CountTokensRequest(OpenModel):
    """What becomes the prompt."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: JsonObject | None = None


class MessagesRequest(CountTokensRequest):
    """How to go on from there. service_tier: there is one."""

    max_tokens: Annotated[int, Field(ge=1)]  # clamped to what the context leaves beside the prompt
    stop_sequences: (
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOP_SEQUENCES)] | None
    ) = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str


class AnthropicErrorResponse(BaseModel):
    """Every error of these routes."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None


def unknown_fields(model: BaseModel, place: str = "") -> Iterator[str]:
    """The keys that no schema here knows, as places: context_management, tools.defer_loading. With repetitions."""
    for name in model.model_extra or ():
        yield f"{place}{name}"
    for name in type(model).model_fields:
        value = getattr(model, name)
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, BaseModel):
                yield from unknown_fields(item, f"{place}{name}.")


def marks_for_caching(body: CountTokensRequest) -> bool:
    """Does the client ask, anywhere, for its prompt to be kept?"""
    marked: list[Any] = [body, *(body.tools or ())]
    marked += body.system if isinstance(body.system, list) else ()
    for message in body.messages:
        marked += message.content if isinstance(message.content, list) else ()
    return any(getattr(item, "cache_control", None) is not None for item in marked)
