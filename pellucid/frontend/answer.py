"""What a model's text means: reasoning, content and tool calls, apart. Every dialect reads these, none reads raw text.

One incremental parser serves streamed and whole answers: whatever the pieces a text is pushed in, the sum of the deltas
is the same.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one tool call. The first of an index has its name (and no later one does); arguments are JSON text."""

    index: int
    name: str | None = None
    arguments: str = ""


class AnswerDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one more piece of text adds, in the order reasoning, content, tool calls."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.tool_calls)


class AnswerParser(Protocol):
    """One per continuation."""

    def push(self, text: str) -> AnswerDelta:
        """Takes the next piece of the text; what may still become a marker is held back."""
        ...

    def finish(self) -> AnswerDelta:
        """After the last piece: whatever was held back."""
        ...


class PlainAnswer:
    """Text is content."""

    def push(self, text: str) -> AnswerDelta:
        return AnswerDelta(content=text)

    def finish(self) -> AnswerDelta:
        return AnswerDelta()
