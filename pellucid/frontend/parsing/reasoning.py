"""Reasoning at the beginning of an answer, between markers of the model's own, apart from what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pellucid.frontend.parsing.stream import WHITE_SPACE, AnswerBuilder, Steps, TextInput


@dataclass(frozen=True)
class ReasoningFormat:
    """begin, end: the markers. Only what an answer begins with is reasoning: a later marker is a word like others."""

    name: str
    begin: str
    end: str

    @property
    def markers(self) -> tuple[str, str]:
        return self.begin, self.end

    def is_open_in(self, prompt: str) -> bool:
        """Whether a prompt, or a last message that is to be continued, leaves the answer within the reasoning."""
        return prompt.rfind(self.begin) > prompt.rfind(self.end)

    def parse(self, source: TextInput, answer: AnswerBuilder, *, is_open: bool) -> Steps[None]:
        """Take the reasoning, if there is any; white space around the markers belongs to them."""
        if not is_open:
            source.keep()
            yield from source.skip_space()
            if (yield from source.accept(self.begin)) is None:
                source.go_back()
                return
            source.let_go()
        yield from source.skip_space()
        yield from source.until([self.end], _without_trailing_space(answer.reasoning))
        yield from source.skip_space()


def _without_trailing_space(emit: Callable[[str], None]) -> Callable[[str], None]:
    """White space goes on only when something follows it."""
    space = ""

    def pass_on(text: str) -> None:
        nonlocal space
        text = space + text
        kept = text.rstrip(WHITE_SPACE)
        space = text[len(kept) :]
        emit(kept)

    return pass_on
