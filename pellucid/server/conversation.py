"""What every chat dialect asks for, in one form: the dialects translate into it, and nothing after them knows which.

A dialect makes a Conversation, calls `prepare`, submits its token ids with its SamplingParams, and puts each choice's
text through a parser of its own from `Prepared.parser()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pellucid.frontend.answer import AnswerParser, PlainAnswer
from pellucid.sampling.params import ReasoningParams, StructuredOutputsParams

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A function the model may call."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None  # JSON schema; None: takes no arguments
    strict: bool = False  # the arguments always fit the schema


@dataclass(frozen=True)
class ToolChoice:
    """allowed: names of the tools that may be called; None: all of them."""

    mode: Literal["auto", "none", "required"] = "auto"
    allowed: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Conversation:
    """messages: as chat templates read them (OpenAI's chat shape: role, content as one text, reasoning_content,
    tool_calls with arguments as JSON text, tool_call_id). param: the dialect's field that errors name.
    """

    messages: list[JsonObject]
    param: str = "messages"
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    thinking_budget: int | None = None  # tokens
    constraint: StructuredOutputsParams | None = None  # on the content, after the reasoning
    template_variables: JsonObject = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    truncate_to: int | None = None


@dataclass(frozen=True)
class Prepared:
    """constraint, reasoning: what decoding has to obey, for SamplingParams.structured_outputs and .reasoning."""

    prompt_token_ids: list[int]
    constraint: StructuredOutputsParams | None = None
    reasoning: ReasoningParams | None = None
    parser: Callable[[], AnswerParser] = PlainAnswer
