"""Parsers that read like recursive descent and yet take their text in pieces: generators that wait for more of it.

A format is a generator over a TextInput and an AnswerBuilder. Where it needs text that is not there yet it yields, and
`push` resumes it. What it does depends on the text alone and never on where a piece ended, so that every way of cutting
a text gives the same sum of deltas.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from pellucid.frontend.answer import AnswerDelta, ToolCallDelta

T = TypeVar("T")
Steps = Generator[None, None, T]

WHITE_SPACE = " \t\r\n"


class TextInput:
    """The text so far, and a position in it. What lies before the position is forgotten unless it is kept."""

    def __init__(self) -> None:
        self.at_end = False  # no more text will come
        self._text = ""
        self._at = 0
        self._kept: list[int] = []  # positions that something may go back to

    def feed(self, text: str) -> None:
        if self._at and not self._kept:
            self._text, self._at = self._text[self._at :], 0
        self._text += text

    @property
    def rest(self) -> str:
        """All that is here and not taken."""
        return self._text[self._at :]

    def take(self, count: int) -> str:
        taken = self._text[self._at : self._at + count]
        self._at += count
        return taken

    def keep(self) -> None:
        """Remember this position, for `go_back` or `let_go`."""
        self._kept.append(self._at)

    def go_back(self) -> None:
        self._at = self._kept.pop()

    def let_go(self) -> None:
        self._kept.pop()

    # what waits ---------------------------------------------------------------------------------------------------

    def peek(self) -> Steps[str]:
        """The next character, not taken; "" at the end."""
        while self._at >= len(self._text):
            if self.at_end:
                return ""
            yield
        return self._text[self._at]

    def skip_space(self) -> Steps[str]:
        """Take white space; returns it."""
        taken = ""
        while (char := (yield from self.peek())) and char in WHITE_SPACE:
            taken += self.take(1)
        return taken

    def accept(self, *words: str) -> Steps[str | None]:
        """Take whichever of the words (none begins another) comes next; None where none does: nothing is taken."""
        while True:
            found = next((word for word in words if self._text.startswith(word, self._at)), None)
            if found is not None:
                self._at += len(found)
                return found
            rest = self.rest
            if self.at_end or not any(word.startswith(rest) for word in words):
                return None
            yield

    def until(self, markers: Sequence[str], emit: Callable[[str], None], *, take: bool = True) -> Steps[str | None]:
        """Text before the first of the markers goes to `emit` as it comes; the marker is taken (or left) and returned.

        None at the end of the text, all of which was emitted. No marker contains another.
        """
        while True:
            found = [(at, marker) for marker in markers if (at := self._text.find(marker, self._at)) >= 0]
            if found:
                at, marker = min(found)
                emit(self.take(at - self._at))
                if take:
                    self._at += len(marker)
                return marker
            held = 0 if self.at_end else held_back(self._text, self._at, markers)
            emit(self.take(len(self._text) - self._at - held))
            if self.at_end:
                return None
            yield

    def to_end(self, emit: Callable[[str], None]) -> Steps[None]:
        """All the rest of the text goes to `emit` as it comes."""
        while True:
            emit(self.take(len(self._text) - self._at))
            if self.at_end:
                return
            yield


def held_back(text: str, start: int, markers: Sequence[str]) -> int:
    """Length of the longest end of text[start:] that begins a marker."""
    longest = min(max(map(len, markers)) - 1, len(text) - start)
    end = text[len(text) - longest :]
    if all(marker[0] not in end for marker in markers):
        return 0  # so it is with nearly every piece, and asked for every token
    for length in range(longest, 0, -1):
        end = text[len(text) - length :]
        if any(marker.startswith(end) for marker in markers):
            return length
    return 0


class AnswerBuilder:
    """Collects what a parser finds, in its order, until it is taken as deltas.

    White space between content and a call, and between calls, belongs to the format and is dropped; it is therefore
    held back until what follows is known.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self.in_call = False
        self._space = ""
        self._after_call = False
        self._has_arguments = False
        self._found: list[AnswerDelta] = []

    def reasoning(self, text: str) -> None:
        if text:
            self._found.append(AnswerDelta(reasoning=text))

    def content(self, text: str) -> None:
        text = self._space + text
        kept = text.rstrip(WHITE_SPACE)
        self._space = text[len(kept) :]
        if kept:
            self._after_call = False
            self._found.append(AnswerDelta(content=kept))

    def open_call(self, name: str) -> None:
        self._space = ""
        self._has_arguments = False
        self.in_call = True
        self._call(ToolCallDelta(index=self.num_calls, name=name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        if text:
            self._has_arguments = True
            self._call(ToolCallDelta(index=self.num_calls - 1, arguments=text))

    def close_call(self) -> None:
        if not self._has_arguments:
            self.arguments("{}")
        self._after_call = True
        self.in_call = False

    def finish(self) -> None:
        if not self._after_call and self._space:
            self._found.append(AnswerDelta(content=self._space))
        self._space = ""

    def take(self) -> list[AnswerDelta]:
        """In as few deltas as keep the order."""
        found, self._found = self._found, []
        if len(found) < 2:
            return found
        groups: list[list[AnswerDelta]] = []
        for piece in found:
            if not groups or _rank(piece) < _rank(groups[-1][-1]):
                groups.append([])
            groups[-1].append(piece)
        return [_joined(group) for group in groups]

    def _call(self, call: ToolCallDelta) -> None:
        self._found.append(AnswerDelta(tool_calls=(call,)))


def _rank(piece: AnswerDelta) -> int:
    """Where in a delta its one kind of news stands."""
    return 2 if piece.tool_calls else 1 if piece.content else 0


def _joined(pieces: Sequence[AnswerDelta]) -> AnswerDelta:
    return AnswerDelta(
        reasoning="".join(piece.reasoning for piece in pieces),
        content="".join(piece.content for piece in pieces),
        tool_calls=merged([call for piece in pieces for call in piece.tool_calls]),
    )


def merged(calls: Sequence[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """One delta a call."""
    result: list[ToolCallDelta] = []
    for call in calls:
        if result and result[-1].index == call.index:
            last = result[-1]
            result[-1] = ToolCallDelta(index=call.index, name=last.name, arguments=last.arguments + call.arguments)
        else:
            result.append(call)
    return tuple(result)


class StreamingParser:
    """An AnswerParser from a generator. `parse` reads the whole text and returns at its end."""

    def __init__(self, parse: Callable[[TextInput, AnswerBuilder], Steps[None]]) -> None:
        self._input = TextInput()
        self._answer = AnswerBuilder()
        self._steps = parse(self._input, self._answer)

    @property
    def in_call(self) -> bool:
        return self._answer.in_call

    def push(self, text: str) -> list[AnswerDelta]:
        self._input.feed(text)
        next(self._steps, None)
        return self._answer.take()

    def finish(self) -> list[AnswerDelta]:
        self._input.at_end = True
        for _ in self._steps:
            raise AssertionError("a parser waits for text after its end")
        self._answer.finish()
        return self._answer.take()
