"""Anthropic's messages to the conversation that every dialect makes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from pellucid.sampling.params import StructuredOutputsParams
from pellucid.server.conversation import Conversation, JsonObject, Tool, ToolChoice
from pellucid.server.errors import ApiError, invalid, shorten
from pellucid.server.offered_tools import offered_tool
from pellucid.server.schemas import messages as schema

logger = logging.getLogger(__name__)

BETWEEN_BLOCKS = "\n"  # blocks are paragraphs of their own; only the assistant's are one text, as it wrote it


def conversation_of(body: schema.CountTokensRequest, *, takes_late_system: bool) -> Conversation:
    """takes_late_system: the model's template shows system messages that come after others. Raises ApiError."""
    first, per_request = _system(body.system)
    messages = _Messages(takes_late_system)
    if first:
        messages.items.append({"role": "system", "content": first})
    for i, message in enumerate(body.messages):
        messages.add(message, f"messages.{i}.content")
    prefill = messages.items.pop() if messages.items[-1]["role"] == "assistant" else None
    if prefill is not None and "tool_calls" in prefill:
        raise invalid(
            f"messages.{len(body.messages) - 1}: `tool_use` ids were found without `tool_result` blocks immediately "
            "after. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
            param="messages",
        )
    if per_request:
        messages.add_system(per_request)
    if prefill is not None:
        messages.items.append(prefill)
    tools = _tools(body.tools or ())
    return Conversation(
        messages=messages.items,
        tools=tools,
        tool_choice=_tool_choice(body.tool_choice, tools),
        parallel_tool_calls=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        constraint=_constraint(body.output_config),
        constraint_source="output_config.format",
        add_generation_prompt=prefill is None,
        continue_final_message=prefill is not None,
        **_thinking(body),
    )


def _system(system: str | Sequence[schema.TextBlock] | None) -> tuple[str, str]:
    """The system prompt, and what of it is to stand at the end of the conversation.

    Whatever changes in a prompt spoils the cache for all that follows it. A client that marks blocks to be cached and
    puts unmarked ones in front of them (Claude Code begins with one that tells requests apart) does not mean those to
    be part of what is kept: they go behind everything else, where they cost their own few tokens.
    """
    if system is None or isinstance(system, str):
        return system or "", ""
    marked = [block.cache_control is not None for block in system]
    num_leading = marked.index(True) if any(marked) else 0
    texts = [block.text for block in system]
    return BETWEEN_BLOCKS.join(texts[num_leading:]), BETWEEN_BLOCKS.join(texts[:num_leading])


class _Messages:
    """Turns of a conversation in chat-template shape, in `items`."""

    def __init__(self, takes_late_system: bool) -> None:
        self.items: list[JsonObject] = []
        self._takes_late_system = takes_late_system
        self._tool_names: dict[str, str] = {}  # by the ids of the calls

    def add(self, message: schema.Message, place: str) -> None:
        blocks = message.content
        if isinstance(blocks, str):
            blocks = [schema.TextBlock(type="text", text=blocks)]
        if message.role == "assistant":
            self._add_assistant(blocks, place)
            return
        texts: list[str] = []
        for i, block in enumerate(blocks):
            if isinstance(block, schema.ToolResultBlock) and message.role == "user":
                self._add_user(texts)
                texts = []
                self._add_tool_result(block, f"{place}.{i}")
            else:
                texts.append(_text(block, f"{place}.{i}"))
        if message.role == "system":
            self.add_system(BETWEEN_BLOCKS.join(texts))
        else:
            self._add_user(texts if blocks else [""])

    def add_system(self, text: str) -> None:
        """A system message after others; a part of the user's turn where the template has no place for it."""
        if self._takes_late_system or not self.items:
            self.items.append({"role": "system", "content": text})
        else:
            self._add_user([text])

    def _add_user(self, texts: Sequence[str]) -> None:
        """Turns that follow each other are one turn: many templates want user and assistant to alternate."""
        if not texts:
            return
        if self.items and self.items[-1]["role"] == "user":
            texts = [self.items.pop()["content"], *texts]
        self.items.append({"role": "user", "content": BETWEEN_BLOCKS.join(texts)})

    def _add_tool_result(self, block: schema.ToolResultBlock, place: str) -> None:
        name = self._tool_names.get(block.tool_use_id)
        if name is None:
            raise invalid(
                f"{place}: unexpected `tool_use_id` found in `tool_result` blocks: {shorten(block.tool_use_id)}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in an earlier message.",
                param=place,
            )
        parts = block.content or ""
        text = (
            parts
            if isinstance(parts, str)
            else BETWEEN_BLOCKS.join(_text(part, f"{place}.content.{i}") for i, part in enumerate(parts))
        )
        if block.is_error:
            text = f"Error: {text}"
        self.items.append({"role": "tool", "tool_call_id": block.tool_use_id, "name": name, "content": text})

    def _add_assistant(self, blocks: Sequence[Any], place: str) -> None:
        texts: list[str] = []
        reasoning: list[str] = []
        calls: list[JsonObject] = []
        for i, block in enumerate(blocks):
            if isinstance(block, schema.ThinkingBlock):
                reasoning.append(block.thinking)
            elif isinstance(block, schema.ToolUseBlock):
                self._tool_names[block.id] = block.name
                arguments = msgspec.json.encode(block.input).decode()
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
            elif not isinstance(block, schema.RedactedThinkingBlock):  # for the eyes of the model that wrote it
                texts.append(_text(block, f"{place}.{i}"))
        message: JsonObject = {"role": "assistant", "content": "".join(texts)}
        if thought := BETWEEN_BLOCKS.join(reasoning):
            message["reasoning_content"] = message["reasoning"] = thought
        if calls:
            message["tool_calls"] = calls
        self.items.append(message)


def _text(block: Any, place: str) -> str:
    """The text of a block that has nothing but text. Raises ApiError, naming the block, for any other."""
    if isinstance(block, schema.TextBlock):
        return block.text
    if isinstance(block, schema.DocumentBlock):
        source = block.source
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            return "\n".join(text for text in (block.title, block.context, source["data"]) if text)
        kind = f"document (source of type {shorten(str(source.get('type')))!r})"
    else:
        kind = shorten(block.type)
    raise ApiError(400, f"{place}: a block of type {kind} can't be read here: this model takes text only.",
                   code="unsupported_content", param=place)  # fmt: skip


def _tools(given: Sequence[schema.Tool]) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    names = set()
    for i, tool in enumerate(given):
        if tool.name in names:
            raise invalid("tools: Tool names must be unique.", param=f"tools.{i}.name")
        names.add(tool.name)
        if tool.type not in (None, "custom"):
            logger.warning("the tool %r of type %r is not run here, and is left out of the prompt",
                           shorten(tool.name), shorten(tool.type))  # fmt: skip
        elif tool.input_schema is None:
            raise invalid(f"tools.{i}.input_schema: Field required", code="missing_required_parameter",
                          param=f"tools.{i}.input_schema")  # fmt: skip
        else:
            tools[tool.name] = offered_tool(
                tool.name,
                tool.description,
                tool.input_schema,
                strict=bool(tool.strict),
                param=f"tools.{i}.input_schema",
                name_param=f"tools.{i}.name",
            )
    return tuple(tools.values())


_MODES: dict[str, Any] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def _tool_choice(choice: schema.ToolChoice | None, tools: Sequence[Tool]) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    if choice.type in ("any", "tool") and not tools:
        raise invalid(f"tool_choice: '{choice.type}' may only be specified while providing tools.", param="tool_choice")
    if choice.type != "tool":
        return ToolChoice(_MODES[choice.type])
    if choice.name is None:
        raise invalid("tool_choice.name: Field required", code="missing_required_parameter", param="tool_choice.name")
    if choice.name not in {tool.name for tool in tools}:
        raise invalid(f"tool_choice.name: Tool '{shorten(choice.name)}' not found in provided tools.",
                      param="tool_choice.name")  # fmt: skip
    return ToolChoice("required", (choice.name,))


def _thinking(body: schema.CountTokensRequest) -> JsonObject:
    """In this dialect a model does not think unless it is asked to; adaptive leaves it to the model. An effort is one
    on all of the answer, and templates that know of it read it either way.
    """
    thinking, effort = body.thinking, body.output_config and body.output_config.effort
    effort = "xhigh" if effort == "max" else effort
    if thinking is None or thinking.type == "disabled":
        return {"template_variables": {"enable_thinking": False}, "reasoning_effort": effort}
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise invalid("thinking.enabled.budget_tokens: Field required", code="missing_required_parameter",
                      param="thinking.budget_tokens")  # fmt: skip
    return {
        "template_variables": {"enable_thinking": True},
        "thinking_budget": thinking.budget_tokens,
        "reasoning_effort": effort,
    }


def _constraint(config: schema.OutputConfig | None) -> StructuredOutputsParams | None:
    if config is None or config.format is None:
        return None
    return StructuredOutputsParams(json=msgspec.json.encode(config.format.schema_).decode())
