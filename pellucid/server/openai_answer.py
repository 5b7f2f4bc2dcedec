"""An answer in the shape of chat completions: a message, or the deltas that add up to it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from pellucid.core.messages import FinishReason
from pellucid.frontend.answer import AnswerDelta, AnswerParser, ToolCallDelta


class ChatAnswer:
    """One choice: its text in, what it says out."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self._has_calls = False

    def push(self, text: str) -> Sequence[AnswerDelta]:
        return self._seen(self._parser.push(text))

    def finish(self) -> Sequence[AnswerDelta]:
        return self._seen(self._parser.finish())

    def whole(self, text: str) -> dict[str, Any]:
        """The message of a text that is complete."""
        parts = [*self.push(text), *self.finish()]
        content = "".join(part.content for part in parts)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning := "".join(part.reasoning for part in parts):
            message |= _reasoning(reasoning)
        calls: list[dict[str, Any]] = []
        for delta in (delta for part in parts for delta in part.tool_calls):
            if delta.name is not None:
                calls.append(_call(delta))
            else:
                calls[delta.index]["function"]["arguments"] += delta.arguments
        if calls:
            message |= {"content": content or None, "tool_calls": calls}
        return message

    def finish_reason(self, reason: FinishReason) -> str:
        """Valid after `finish`. A call that was cut off, by max_tokens or by a stop string, is no call to make."""
        is_to_make = self._has_calls and not self._parser.in_call
        return "tool_calls" if is_to_make and reason is FinishReason.STOP else reason.value

    def _seen(self, deltas: Sequence[AnswerDelta]) -> Sequence[AnswerDelta]:
        for delta in deltas:
            if delta.tool_calls:
                self._has_calls = True
        return deltas


def chunk_deltas(answer: Sequence[AnswerDelta]) -> list[dict[str, Any]]:
    """One chunk's delta for each piece of news: clients look for one thing in each."""
    return [shaped for delta in answer for shaped in _chunk_deltas(delta)]


def _chunk_deltas(delta: AnswerDelta) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    if delta.reasoning:
        deltas.append(_reasoning(delta.reasoning))
    if delta.content:
        deltas.append({"content": delta.content})
    for call in delta.tool_calls:
        shaped = {"index": call.index, "function": {"arguments": call.arguments}}
        if call.name is not None:
            shaped = {"index": call.index, **_call(call)}
        deltas.append({"tool_calls": [shaped]})
    return deltas


def _reasoning(text: str) -> dict[str, str]:
    """Under both of the names that clients read."""
    return {"reasoning_content": text, "reasoning": text}


def _call(delta: ToolCallDelta) -> dict[str, Any]:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": delta.name, "arguments": delta.arguments},
    }
