"""FunctionGemma's and Gemma 4's calls: call:NAME{key:value,...} between markers, strings in quotes of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.frontend.parsing.answer_parser import ParseCalls
from pellucid.frontend.parsing.call_grammar import CallFrame, GrammarWriter, arguments_one_by_one
from pellucid.frontend.parsing.json_text import as_json_string, copy_string, is_json
from pellucid.frontend.parsing.schema_types import is_text
from pellucid.frontend.parsing.stream import WHITE_SPACE, AnswerBuilder, Steps, TextInput
from pellucid.frontend.parsing.tool_format import Call, ToolFormat
from pellucid.frontend.tools import Tool

_NAME_CHARACTERS = frozenset("_-.:/")
_END_OF_WORD = ',:{}[]"<' + WHITE_SPACE
_KEY = re.compile(f"[^{re.escape(_END_OF_WORD)}]+")


@dataclass(frozen=True)
class GemmaToolFormat(ToolFormat):
    name: str
    opener: str
    closer: str
    quote: str
    one_by_one: bool = True

    @property
    def markers(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.opener, self.closer, self.quote)

    def parser(self, tools: Sequence[Tool]) -> ParseCalls:
        return self._parse

    @property
    def frame(self) -> CallFrame:
        return CallFrame(call_open=self.opener, trigger=self.opener)

    def call_term(self, writer: GrammarWriter, tool: Tool, name: str) -> str:
        def argument(key: str, schema: Any) -> str:
            if is_text(schema):
                return " ".join([writer.text(f"{key}:{self.quote}"), writer.free_text(schema, self.quote)])
            return " ".join([writer.text(f"{key}:"), writer.json(schema, tool.schema)])

        arguments = arguments_one_by_one(writer, tool, argument, ",", name, _KEY)
        head, tail = writer.text(f"call:{tool.name}{{"), writer.text("}" + self.closer)
        return f"{head} {arguments} {tail}"

    def calls_text(self, calls: Sequence[Call]) -> str:
        return "".join(f"{self.opener}call:{name}{self._value_text(args)}{self.closer}" for name, args in calls)

    def _value_text(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{self._value_text(inner)}" for key, inner in value.items()) + "}"
        if isinstance(value, list):
            return f"[{','.join(map(self._value_text, value))}]"
        return json.dumps(value)

    def _parse(self, source: TextInput, answer: AnswerBuilder) -> Steps[None]:
        while (yield from source.until([self.opener], answer.content)) is not None:
            if not (yield from self._call(source, answer)):
                answer.content(self.opener)

    def _call(self, source: TextInput, answer: AnswerBuilder) -> Steps[bool]:
        source.keep()
        yield from source.skip_space()
        name = ""
        if (yield from source.accept("call:")) is not None:
            yield from source.skip_space()
            while (char := (yield from source.peek())) and (char.isalnum() or char in _NAME_CHARACTERS):
                name += source.take(1)
        if not name or (yield from source.peek()) != "{":
            source.go_back()
            return False
        source.let_go()
        answer.open_call(name)
        if (yield from self._arguments(source, answer.arguments)):
            answer.close_call()
            yield from source.skip_space()
            yield from source.accept(self.closer)
        return True

    def _arguments(self, source: TextInput, emit: Callable[[str], None]) -> Steps[bool]:
        """The object that comes next as JSON. False where the text ends within it, or it closes too early."""
        depth = 0
        while True:
            char = yield from source.peek()
            if not char:
                return False
            if (yield from source.accept(self.quote)) is not None:
                emit('"')
                if (yield from source.until([self.quote], as_json_string(emit))) is None:
                    return False
                emit('"')
            elif (yield from source.accept(self.closer)) is not None:
                return False
            elif source.at_end and any(marker.startswith(source.rest) for marker in (self.quote, self.closer)):
                source.take(len(source.rest))  # cut off within a marker
                return False
            elif char in "{[":
                depth += 1
                emit(source.take(1))
            elif char in "}]":
                depth -= 1
                emit(source.take(1))
                if depth == 0:
                    return True
            elif char == '"':  # JSON's own quotes, which some write all the same
                yield from copy_string(source, emit)
            elif char in ",:":
                emit({",": ", ", ":": ": "}[source.take(1)])
            elif char in WHITE_SPACE:
                source.take(1)
            else:
                emit((yield from _word(source)))


def _word(source: TextInput) -> Steps[str]:
    """A bare key, a number or a constant: what is no JSON value is a string."""
    word = ""
    while (char := (yield from source.peek())) and char not in _END_OF_WORD:
        word += source.take(1)
    if not word:
        word = source.take(1)
    yield from source.skip_space()
    if (yield from source.peek()) == "":
        return ""  # cut off: what it was to be is not known
    is_key = (yield from source.peek()) == ":"
    return word if not is_key and is_json(word) else json.dumps(word, ensure_ascii=False)
