"""Formats that write a call as a JSON object: {"name": ..., "arguments": {...}}, one or several, or an array."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pellucid.frontend.parsing.json_text import object_text, read_container, read_string, read_value
from pellucid.frontend.parsing.stream import AnswerBuilder, Steps, TextInput

_ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True)
class JsonCalls:
    """opener, closer: around the calls. bare_names: tools whose calls are calls even where the answer begins with them
    without an opener.

    The calls are one object, several with white space, commas or semicolons between, or an array.
    """

    opener: str | None
    closer: str | None = None
    bare_names: Collection[str] = ()

    def parse(self, source: TextInput, answer: AnswerBuilder) -> Steps[None]:
        if self.bare_names:
            source.keep()
            yield from source.skip_space()
            if (yield from self.attempt(source, answer, self.bare_names)):
                source.let_go()
            else:
                source.go_back()
        if self.opener is None:
            yield from source.to_end(answer.content)
            return
        while (yield from source.until([self.opener], answer.content)) is not None:
            if not (yield from self.attempt(source, answer)):
                answer.content(self.opener)

    def attempt(self, source: TextInput, answer: AnswerBuilder, names: Collection[str] | None = None) -> Steps[bool]:
        """The calls that come next, up to and with the closer. False, and nothing taken, where there is none.

        names: only calls of these are calls.
        """
        source.keep()
        yield from source.skip_space()
        is_array = (yield from source.accept("[")) is not None
        yield from source.skip_space()
        found = yield from self._call(source, answer, names)
        if not found:
            source.go_back()
            return False
        source.let_go()
        while found:
            source.keep()
            yield from source.skip_space()
            yield from source.accept(",", ";")
            yield from source.skip_space()
            found = yield from self._call(source, answer, names)
            if found:
                source.let_go()
            else:
                source.go_back()
        yield from self._end(source, is_array)
        return True

    def _end(self, source: TextInput, is_array: bool) -> Steps[None]:
        """The bracket and the closer, where they come; models write a bracket too many before a closer."""
        source.keep()
        if self.closer is None:
            yield from source.skip_space()
            if is_array and (yield from source.accept("]")):
                source.let_go()
            else:
                source.go_back()
            return
        while (yield from source.accept(*"]} \t\r\n")) is not None:
            pass
        if (yield from source.accept(self.closer)) is not None or (yield from source.peek()) == "":
            source.let_go()
        else:
            source.go_back()

    def _call(self, source: TextInput, answer: AnswerBuilder, names: Collection[str] | None) -> Steps[bool]:
        """One object. False where it is none, before anything of it was told."""
        if (yield from source.accept("{")) is None:
            return False
        name: str | None = None
        early: str | None = None  # arguments that came before the name
        is_open = False
        num_members = 0
        while True:
            yield from source.skip_space()
            char = yield from source.peek()
            if char == "}":
                source.take(1)
                break
            if num_members:
                if (yield from source.accept(",")) is None:
                    if is_open:
                        break
                    return False
                yield from source.skip_space()
            num_members += 1
            key = yield from read_string(source)
            yield from source.skip_space()
            if key is None or (yield from source.accept(":")) is None:
                if is_open:
                    break
                return False
            yield from source.skip_space()
            if key == "name" and name is None:
                name = yield from read_string(source)
                if not name or (names is not None and name not in names):
                    return False
            elif key in _ARGUMENTS and name and not is_open and (yield from source.peek()) == "{":
                answer.open_call(name)
                is_open = True
                if not (yield from read_container(source, answer.arguments)):
                    if source.rest:  # it broke off at what JSON does not have there, not at the end of the text
                        yield from self._broken(source, answer)
                    return True
            else:
                value = yield from read_value(source)
                if key in _ARGUMENTS and value is not None and not is_open:
                    early = value = object_text(value)
                if value is None:
                    if is_open:
                        break
                    return False
        if not is_open:
            if not name:
                return False
            answer.open_call(name)
            answer.arguments(early or "")
        answer.close_call()
        return True

    def _broken(self, source: TextInput, answer: AnswerBuilder) -> Steps[None]:
        """Arguments that stopped being JSON are passed on as they are: the client is told what the model wrote."""
        if self.closer is not None:
            yield from source.until([self.closer], answer.arguments, take=False)
        else:
            yield from source.to_end(answer.arguments)
        answer.close_call()
