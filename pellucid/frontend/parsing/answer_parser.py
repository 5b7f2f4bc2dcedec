"""The parser of one answer, put together from the formats of its model: reasoning first, then content and calls."""

from __future__ import annotations

from collections.abc import Callable

from pellucid.frontend.answer import AnswerParser, PlainAnswer
from pellucid.frontend.parsing.reasoning import ReasoningFormat
from pellucid.frontend.parsing.stream import AnswerBuilder, Steps, StreamingParser, TextInput

ParseCalls = Callable[[TextInput, AnswerBuilder], Steps[None]]


def answer_parser(
    reasoning: ReasoningFormat | None = None, *, is_open: bool = False, calls: ParseCalls | None = None
) -> AnswerParser:
    """is_open: the prompt has begun the reasoning. calls: of the tool format; None: what looks like one is content."""
    if reasoning is None and calls is None:
        return PlainAnswer()

    def parse(source: TextInput, answer: AnswerBuilder) -> Steps[None]:
        if reasoning is not None:
            yield from reasoning.parse(source, answer, is_open=is_open)
        yield from (calls(source, answer) if calls is not None else source.to_end(answer.content))

    return StreamingParser(parse)
