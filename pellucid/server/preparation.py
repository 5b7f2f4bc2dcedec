"""From a conversation to what the engine is asked, and how its answer is read: tools, reasoning, constraints."""

from __future__ import annotations

import logging
from dataclasses import replace

from pellucid.frontend.async_llm import AsyncLLM
from pellucid.frontend.chat_messages import as_the_template_reads, without_tool_words
from pellucid.frontend.parsing.formats import AnswerFormats
from pellucid.frontend.parsing.reasoning import ReasoningFormat
from pellucid.frontend.tools import Tool
from pellucid.sampling.params import ReasoningParams
from pellucid.server.call_constraints import constraint_of
from pellucid.server.constraints import check_constraint
from pellucid.server.conversation import Conversation, Prepared
from pellucid.server.errors import invalid, unsupported
from pellucid.server.prompts import render_chat
from pellucid.server.state import ServerState

logger = logging.getLogger(__name__)

_TAIL_TOKENS = 16  # enough to hold a marker of reasoning and the white space after it


def check_thinking_budget(state: ServerState, budget: int | None) -> None:
    """Raises ApiError for one that could not be kept: no form of reasoning is known of the model."""
    if budget is not None and state.formats.reasoning is None:
        detail = "is for models that reason, and no form of reasoning is known of this one (see --reasoning-parser)."
        raise unsupported("thinking_token_budget", detail)


async def prepare(state: ServerState, conversation: Conversation) -> Prepared:
    """Raises ApiError where the template refuses the conversation, the prompt does not fit, or a constraint does not
    compile."""
    llm, formats = state.engine(), state.formats
    # what must not be called is not spoken of: an answer then holds no call to be misread
    tools = () if conversation.tool_choice.mode == "none" else conversation.tools
    if tools and formats.tools is None:
        raise invalid("This server was started without a tool call parser: 'tools' can't be used.", param="tools")
    if tools and formats.tools_warning and not state.told_of_tools:
        state.told_of_tools = True
        logger.warning(formats.tools_warning)
    constraint = constraint_of(conversation, tools, formats, llm.tokenizer)
    source = conversation.constraint_source if constraint == conversation.constraint else "tools"
    await check_constraint(llm, constraint, source)
    token_ids = await _render(llm, formats, conversation, tools)
    reasons, is_open = _reasoning_at_start(llm, formats.reasoning, conversation, token_ids)
    return Prepared(
        token_ids,
        constraint,
        _reasoning_params(llm, formats.reasoning, is_open, conversation.thinking_budget) if reasons else None,
        shown_token_ids=formats.marker_ids,
        parser=lambda: formats.parser(tools=tools, reasons=reasons, reasoning_is_open=is_open),
    )


async def _render(
    llm: AsyncLLM, formats: AnswerFormats, conversation: Conversation, tools: tuple[Tool, ...]
) -> list[int]:
    source = llm.tokenizer.chat_template.source or ""
    if formats.template_has_tools or formats.tools is None:
        messages = as_the_template_reads(conversation.messages, source)
        described = [tool.as_templates_read_it() for tool in tools] or None
    else:
        messages = without_tool_words(conversation.messages, tools, formats.tools, source)
        described = None
    return await render_chat(llm, replace(conversation, messages=messages), described)


def _reasoning_at_start(
    llm: AsyncLLM, reasoning: ReasoningFormat | None, conversation: Conversation, token_ids: list[int]
) -> tuple[bool, bool]:
    """Whether the answer may reason, and whether the prompt has begun to: templates do, or end it before it begins."""
    if reasoning is None:
        return False, False
    if conversation.continue_final_message:
        said = conversation.messages[-1].get("content") or ""
        is_open = reasoning.is_open_in(said)
        return is_open or not said.strip(), is_open
    tail = llm.tokenizer.decode(token_ids[-_TAIL_TOKENS:], skip_special_tokens=False).rstrip()
    return not tail.endswith(reasoning.end), tail.endswith(reasoning.begin.rstrip())


def _reasoning_params(
    llm: AsyncLLM, reasoning: ReasoningFormat | None, is_open: bool, budget: int | None
) -> ReasoningParams:
    assert reasoning is not None

    def encoded(marker: str) -> tuple[int, ...]:
        return tuple(llm.tokenizer.encode(marker, add_special_tokens=False))

    return ReasoningParams(
        end_token_ids=encoded(reasoning.end),
        start_token_ids=encoded(reasoning.begin),
        starts_inside=is_open,
        budget=budget,
    )
