"""What a model's text means: reasoning, content and tool calls, apart. Every dialect reads these, none reads raw text.

One incremental parser serves streamed and whole answers: whatever the pieces a text is pushed in, the sum of the deltas
is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one tool call. The first of an index has its name (and no later one does); arguments are JSON text."""

    index: int
    name: str | None = None
    arguments: str = ""


class AnswerDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one more piece of text adds, in the order reasoning, content, tool calls. What comes in another order, such
    as text behind a call, is several deltas.
    """

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.tool_calls)


class AnswerParser(Protocol):
    """One per continuation."""

    @property
    def in_call(self) -> bool:
        """After `finish`: whether the text ended within the arguments of a call, which therefore is none to make."""
        ...

    def push(self, text: str) -> Sequence[AnswerDelta]:
        """Takes the next piece of the text; what may still become a marker is held back. No delta is empty."""
        ...

    def finish(self) -> Sequence[AnswerDelta]:
        """After the last piece: whatever was held back."""
        ...


class PlainAnswer:
    """Text is content."""

    in_call = False

    def push(self, text: str) -> Sequence[AnswerDelta]:
        return (AnswerDelta(content=text),) if text else ()

    def finish(self) -> Sequence[AnswerDelta]:
        return ()
