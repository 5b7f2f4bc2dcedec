"""Mistral's calls: [TOOL_CALLS] and an array of objects, or (newer) [TOOL_CALLS]NAME[ARGS]{...} for each call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.frontend.parsing.answer_parser import ParseCalls
from pellucid.frontend.parsing.call_grammar import CallFrame, GrammarWriter, closed
from pellucid.frontend.parsing.json_calls import JsonCalls
from pellucid.frontend.parsing.json_text import read_container
from pellucid.frontend.parsing.stream import AnswerBuilder, Steps, TextInput
from pellucid.frontend.parsing.tool_format import Call, ToolFormat
from pellucid.frontend.tools import Tool

OPENER, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME_CHARACTERS = frozenset("_-.:/")


@dataclass(frozen=True)
class MistralToolFormat(ToolFormat):
    """names_first: what a model of the newer kind writes. Both kinds are read in any case."""

    name: str = "mistral"
    markers: tuple[str, ...] = (OPENER, ARGS, CALL_ID)
    names_first: bool = False

    def parser(self, tools: Sequence[Tool]) -> ParseCalls:
        return _parse

    @property
    def frame(self) -> CallFrame:
        if self.names_first:
            return CallFrame(call_open=OPENER, trigger=OPENER)
        return CallFrame(f"{OPENER}[", "", ", ", "]", OPENER)

    def call_term(self, writer: GrammarWriter, tool: Tool, name: str) -> str:
        arguments = writer.json(closed(tool.schema))
        if self.names_first:
            return f"{writer.text(tool.name + ARGS)} {arguments}"
        head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
        return f'{writer.text(head)} {arguments} "}}"'

    def calls_text(self, calls: Sequence[Call]) -> str:
        if self.names_first:
            return "".join(f"{OPENER}{name}{ARGS}{json.dumps(args, ensure_ascii=False)}" for name, args in calls)
        objects = [{"name": name, "arguments": arguments} for name, arguments in calls]
        return OPENER + json.dumps(objects, ensure_ascii=False)


def _parse(source: TextInput, answer: AnswerBuilder) -> Steps[None]:
    objects = JsonCalls(OPENER)
    while (yield from source.until([OPENER], answer.content)) is not None:
        found = yield from objects.attempt(source, answer)
        if not found and not (yield from _named(source, answer)):
            answer.content(OPENER)


def _named(source: TextInput, answer: AnswerBuilder) -> Steps[bool]:
    source.keep()
    yield from source.skip_space()
    name = ""
    while (char := (yield from source.peek())) and (char.isalnum() or char in _NAME_CHARACTERS):
        name += source.take(1)
    if name and (yield from source.accept(CALL_ID)) is not None:  # the server gives its own
        while (char := (yield from source.peek())).isalnum():
            source.take(1)
    yield from source.accept(ARGS)
    yield from source.skip_space()
    if not name or (yield from source.peek()) != "{":
        source.go_back()
        return False
    source.let_go()
    answer.open_call(name)
    if not (yield from read_container(source, answer.arguments)):
        if not source.rest:  # cut off
            return True
        yield from source.until([OPENER], answer.arguments, take=False)
    answer.close_call()
    return True
