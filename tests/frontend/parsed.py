"""What a parser makes of a text that comes in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hypothesis import strategies as st

from pellucid.frontend.answer import AnswerDelta, AnswerParser


@dataclass
class Parsed:
    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def values(self) -> list[tuple[str, object]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def deltas_of(parser: AnswerParser, pieces: Iterable[str]) -> Iterator[AnswerDelta]:
    for piece in pieces:
        yield from parser.push(piece)
    yield from parser.finish()


def parse(parser: AnswerParser, pieces: list[str]) -> Parsed:
    parsed = Parsed()
    for delta in deltas_of(parser, pieces):
        parsed.reasoning += delta.reasoning
        parsed.content += delta.content
        for call in delta.tool_calls:
            if call.name is not None:
                assert call.index == len(parsed.calls)
                parsed.calls.append((call.name, call.arguments))
            else:
                name, arguments = parsed.calls[call.index]
                parsed.calls[call.index] = name, arguments + call.arguments
    return parsed


def pieces_of(text: str) -> st.SearchStrategy[str]:
    """Some of a text's own pieces, in any order."""
    words = [text[i : i + size] for size in (1, 3, 9) for i in range(0, len(text), size)]
    return st.lists(st.sampled_from(words), max_size=30).map("".join)
