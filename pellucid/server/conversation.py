"""What every chat dialect asks for, in one form: the dialects translate into it, and nothing after them knows which.

A dialect makes a Conversation, calls `prepare`, submits its token ids with `Prepared.applied_to(params)`, and
puts each choice's text through a parser of its own from `Prepared.parser()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from pellucid.frontend.answer import AnswerParser, PlainAnswer
from pellucid.frontend.tools import JsonObject, Tool
from pellucid.sampling.params import ReasoningParams, SamplingParams, StructuredOutputsParams

__all__ = ["Conversation", "JsonObject", "Prepared", "Tool", "ToolChoice"]


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
    constraint_source: str = "structured_outputs"  # the field that it was given in, and the schema's name if it has one
    template_variables: JsonObject = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    truncate_to: int | None = None


@dataclass(frozen=True)
class Prepared:
    """constraint, reasoning: what decoding has to obey. shown_token_ids: special tokens that the parser has to see."""

    prompt_token_ids: list[int]
    constraint: StructuredOutputsParams | None = None
    reasoning: ReasoningParams | None = None
    shown_token_ids: tuple[int, ...] = ()
    parser: Callable[[], AnswerParser] = PlainAnswer

    def applied_to(self, params: SamplingParams) -> SamplingParams:
        """The request's parameters with what its conversation asks for."""
        return msgspec.structs.replace(
            params,
            structured_outputs=self.constraint,
            reasoning=self.reasoning,
            shown_special_token_ids=self.shown_token_ids,
        )
