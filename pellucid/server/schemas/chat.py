"""POST /v1/chat/completions: the request, as OpenAI defines it, with vLLM's extras."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pellucid.server.schemas.common import (
    MAX_LOGPROBS,
    ClientFields,
    JsonObject,
    SamplingFields,
    StreamFields,
    StrictModel,
)
from pellucid.server.schemas.structured import ConstraintFields, ResponseFormat


class TextPart(StrictModel):
    type: Literal["text"]
    text: str


class RefusalPart(StrictModel):
    type: Literal["refusal"]
    refusal: str


Text = str | list[TextPart]
AssistantPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]


class FunctionCall(StrictModel):
    name: str
    arguments: str


class ToolCall(StrictModel):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None  # clients that put a stream together keep it


class SystemMessage(StrictModel):
    role: Literal["system"]
    content: Text
    name: str | None = None


class DeveloperMessage(StrictModel):
    role: Literal["developer"]
    content: Text
    name: str | None = None


class UserMessage(StrictModel):
    role: Literal["user"]
    content: Text
    name: str | None = None


class ToolMessage(StrictModel):
    role: Literal["tool"]
    content: Text
    tool_call_id: str
    name: str | None = None


class AssistantMessage(StrictModel):
    """As a response gave it: SDKs send the whole message back, its empty fields included."""

    role: Literal["assistant"]
    content: str | list[AssistantPart] | None = None
    refusal: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    annotations: Annotated[list[JsonObject], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None


Message = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


MAX_MESSAGES = 16384

Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ChatPrompt(StrictModel):
    """The part of a request that becomes the prompt; /tokenize takes it too."""

    messages: Messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = Field(
        None, description="Variables of the model's own template, such as enable_thinking."
    )


MAX_TOOLS = 512
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]


class FunctionDefinition(StrictModel):
    name: FunctionName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class FunctionTool(StrictModel):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionReference(StrictModel):
    name: str


class NamedTool(StrictModel):
    type: Literal["function"]
    function: FunctionReference


class AllowedTools(StrictModel):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(StrictModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoiceObject = Annotated[NamedTool | AllowedToolsChoice, Field(discriminator="type")]


class ChatCompletionRequest(ChatPrompt, SamplingFields, ConstraintFields, StreamFields, ClientFields):
    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="Given to the chat template, which may or may not know it."
    )
    thinking_token_budget: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Most tokens of reasoning; then it is ended and the answer begins."
    )
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["medium"] | None = None
    store: Literal[False] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
