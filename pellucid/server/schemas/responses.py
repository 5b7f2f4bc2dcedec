"""POST /v1/responses: the request, as OpenAI's own package types it, made strict.

Items and tools are the package's models. Where real clients leave out what the package calls required (an assistant's
message comes back without id, status and annotations), a subclass says so.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from openai.types.responses import (
    CustomTool,
    FunctionTool,
    NamespaceTool,
    ResponseCustomToolCall,
    ResponseCustomToolCallOutput,
    ResponseFormatTextJSONSchemaConfig,
    ResponseFunctionToolCall,
    ResponseIncludable,
    ResponseInputText,
    ResponseOutputRefusal,
    ResponseOutputText,
    ResponseReasoningItem,
    Tool,
    response_input_item,
)
from openai.types.shared import Reasoning, ResponseFormatJSONObject, ResponseFormatText
from pydantic import ConfigDict, Discriminator, Field, Tag

from pellucid.server.schemas.common import (
    MAX_LOGPROBS,
    MAX_STOP_STRINGS,
    ClientFields,
    JsonObject,
    SamplingFields,
    StrictModel,
)

MAX_ITEMS = 16384
MAX_TOOLS = 1024

_STRICT = ConfigDict(extra="forbid", strict=True, defer_build=False)


# items ---------------------------------------------------------------------------------------------------------------


class InputText(ResponseInputText):
    model_config = _STRICT


class OutputText(ResponseOutputText):
    model_config = _STRICT
    annotations: list[Any] = Field(default_factory=list)


class Refusal(ResponseOutputRefusal):
    model_config = _STRICT


Part = Annotated[InputText | OutputText | Refusal, Field(discriminator="type")]


class Message(StrictModel):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCall(ResponseFunctionToolCall):
    model_config = _STRICT


class FunctionCallOutput(response_input_item.FunctionCallOutput):
    model_config = _STRICT
    call_id: str
    output: str | list[InputText]  # type: ignore[assignment]


class CustomToolCall(ResponseCustomToolCall):
    model_config = _STRICT
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class CustomToolCallOutput(ResponseCustomToolCallOutput):
    model_config = _STRICT
    output: str | list[InputText]  # type: ignore[assignment]
    name: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class ReasoningItem(ResponseReasoningItem):
    model_config = _STRICT
    id: str | None = None  # type: ignore[assignment]


class ItemReference(response_input_item.ItemReference):
    model_config = _STRICT
    type: Literal["item_reference"] = "item_reference"


HostedItemType = Literal[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
]


class HostedItem(StrictModel):
    """What a tool that OpenAI runs did in an earlier turn. It is left out of the prompt, with a warning."""

    model_config = ConfigDict(extra="allow", strict=True)
    type: HostedItemType


def _item_type(value: Any) -> Any:
    """`type` may be left out of a message, and of a reference."""
    if not isinstance(value, dict):
        return getattr(value, "type", "message")
    return value.get("type") or ("message" if "role" in value or "id" not in value else "item_reference")


Item = Annotated[
    Annotated[Message, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[CustomToolCall, Tag("custom_tool_call")]
    | Annotated[CustomToolCallOutput, Tag("custom_tool_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")]
    | Annotated[HostedItem, Tag("web_search_call")]
    | Annotated[HostedItem, Tag("file_search_call")]
    | Annotated[HostedItem, Tag("code_interpreter_call")]
    | Annotated[HostedItem, Tag("image_generation_call")]
    | Annotated[HostedItem, Tag("mcp_list_tools")]
    | Annotated[HostedItem, Tag("mcp_call")],
    Discriminator(_item_type),
]


# tools ---------------------------------------------------------------------------------------------------------------


class StrictFunctionTool(FunctionTool):
    model_config = _STRICT
    name: Annotated[str, Field(min_length=1, max_length=128)]


class StrictCustomTool(CustomTool):
    model_config = _STRICT
    name: Annotated[str, Field(min_length=1, max_length=128)]


class StrictNamespaceTool(NamespaceTool):
    model_config = _STRICT
    name: Annotated[str, Field(min_length=1, max_length=128)]


_OURS = ("function", "custom", "namespace")
HOSTED_TOOLS: tuple[str, ...] = tuple(
    sorted(
        name
        for tool in get_args(get_args(Tool)[0])
        for name in get_args(tool.model_fields["type"].annotation)
        if name not in _OURS
    )
)


class HostedTool(StrictModel):
    """A tool that OpenAI runs, or that only its models were taught. It is left out of the prompt, with a warning."""

    model_config = ConfigDict(extra="allow", strict=True)
    type: Literal[HOSTED_TOOLS]  # type: ignore[valid-type]


AnyTool = Annotated[
    StrictFunctionTool | StrictCustomTool | StrictNamespaceTool | HostedTool, Field(discriminator="type")
]


class NamedToolChoice(StrictModel):
    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None


class HostedToolChoice(StrictModel):
    model_config = ConfigDict(extra="allow", strict=True)
    type: Literal[HOSTED_TOOLS]  # type: ignore[valid-type]


class AllowedTools(StrictModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Annotated[NamedToolChoice | HostedToolChoice, Field(discriminator="type")]],
        Field(min_length=1, max_length=MAX_TOOLS),
    ]


ToolChoiceField = (
    Literal["none", "auto", "required"]
    | Annotated[NamedToolChoice | AllowedTools | HostedToolChoice, Field(discriminator="type")]
)


# the request ---------------------------------------------------------------------------------------------------------


class JsonSchemaFormat(ResponseFormatTextJSONSchemaConfig):
    model_config = _STRICT


TextFormat = Annotated[ResponseFormatText | ResponseFormatJSONObject | JsonSchemaFormat, Field(discriminator="type")]


class TextConfig(StrictModel):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningConfig(Reasoning):
    model_config = _STRICT
    context: Literal["auto"] | None = None  # the model's template decides what of earlier reasoning it reads
    mode: Literal["standard"] | None = None
    summary: Literal["auto", "detailed"] | None = None  # the reasoning itself: nothing here could shorten it
    generate_summary: Literal["auto", "detailed"] | None = None


class ResponseStreamOptions(StrictModel):
    include_obfuscation: Literal[False] | None = None  # nothing is ever padded here


class ResponsesRequest(ClientFields):
    """OpenAI's fields, and of vLLM's extras those that sampling and scheduling know."""

    model: str
    input: str | Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=256)] | None = None
    store: bool | None = Field(None, description="True unless the server keeps no responses.")
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    include: Annotated[list[ResponseIncludable], Field(max_length=32)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Calls beyond it are left out of the response."
    )
    parallel_tool_calls: bool | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceField | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    client_metadata: JsonObject | None = Field(None, description="What a client notes about itself.")
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None

    seed: int | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOP_STRINGS)] | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    chat_template_kwargs: JsonObject | None = None
    thinking_token_budget: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Most tokens of reasoning; then it is ended and the answer begins."
    )


SHARED_SAMPLING_FIELDS = tuple(name for name in SamplingFields.model_fields if name in ResponsesRequest.model_fields)
