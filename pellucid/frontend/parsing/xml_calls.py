"""Qwen3-Coder's calls: <function=NAME> with a <parameter=KEY> element for each argument, values as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pellucid.frontend.parsing.answer_parser import ParseCalls
from pellucid.frontend.parsing.call_grammar import CallFrame, GrammarWriter, arguments_one_by_one
from pellucid.frontend.parsing.json_text import as_json_string, copy_string, kind_of_text, read_container
from pellucid.frontend.parsing.schema_types import allows, argument_schemas, is_text
from pellucid.frontend.parsing.stream import AnswerBuilder, Steps, TextInput
from pellucid.frontend.parsing.tool_format import Call, ToolFormat
from pellucid.frontend.tools import JsonObject, Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_NAME = re.compile(r"[^\s<>]{1,256}")
_KEY = re.compile(r"[^<>\r\n]{1,256}")
_OPENED = {'"': "string", "[": "array", "{": "object"}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


class XmlToolFormat(ToolFormat):
    name = "qwen3_coder"
    one_by_one = True
    markers = (OPEN, CLOSE, FUNCTION, END_FUNCTION, PARAMETER, END_PARAMETER)

    def parser(self, tools: Sequence[Tool]) -> ParseCalls:
        return XmlCalls(argument_schemas(tools)).parse

    @property
    def frame(self) -> CallFrame:
        return CallFrame(call_open=f"{OPEN}\n", separator="\n", trigger=OPEN)

    def call_term(self, writer: GrammarWriter, tool: Tool, name: str) -> str:
        def argument(key: str, schema: Any) -> str:
            head, end = writer.text(f"{PARAMETER}{key}>\n"), f"\n{END_PARAMETER}"
            if is_text(schema):
                return " ".join([head, writer.free_text(schema, end), writer.text("\n")])
            return " ".join([head, writer.json(schema, tool.schema), writer.text(end + "\n")])

        arguments = arguments_one_by_one(writer, tool, argument, "", name, _KEY)
        head, tail = writer.text(f"{FUNCTION}{tool.name}>\n"), writer.text(f"{END_FUNCTION}\n{CLOSE}")
        return f"{head} {arguments} {tail}"

    def calls_text(self, calls: Sequence[Call]) -> str:
        return "\n".join(f"{OPEN}\n{_call_text(name, arguments)}\n{CLOSE}" for name, arguments in calls)


def _call_text(name: str, arguments: JsonObject) -> str:
    lines = [f"{FUNCTION}{name}>"]
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{PARAMETER}{key}>\n{text}\n{END_PARAMETER}")
    return "\n".join([*lines, END_FUNCTION])


class XmlCalls:
    """schemas: tool -> argument -> schema. Strings stream; other values are converted when they are complete."""

    def __init__(self, schemas: dict[str, JsonObject]) -> None:
        self._schemas = schemas

    def parse(self, source: TextInput, answer: AnswerBuilder) -> Steps[None]:
        while (found := (yield from source.until([OPEN, FUNCTION], answer.content, take=False))) is not None:
            source.keep()
            yield from source.accept(OPEN)
            yield from source.skip_space()
            name = yield from _tag(source, FUNCTION, _NAME)
            if name is None:
                source.go_back()
                answer.content(source.take(len(found)))
                continue
            source.let_go()
            answer.open_call(name)
            yield from self._arguments(source, answer, self._schemas.get(name, {}))

    def _arguments(self, source: TextInput, answer: AnswerBuilder, schemas: JsonObject) -> Steps[None]:
        """Up to the end of the call; the object is closed only where the call is."""
        before = "{"
        while True:
            yield from source.skip_space()
            key = yield from _tag(source, PARAMETER, _KEY)
            if key is not None:
                answer.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
                before = ", "
                if not (yield from _value(source, answer, schemas.get(key))):
                    return
            elif source.at_end and _begins_tag(source.rest):  # cut off
                source.take(len(source.rest))
                return
            else:
                break
        if (yield from source.accept(END_FUNCTION)) is not None:
            yield from source.skip_space()
        answer.arguments("}" if before == ", " else "{}")
        answer.close_call()
        yield from source.accept(CLOSE)


def _begins_tag(text: str) -> bool:
    return text.startswith(PARAMETER) or any(tag.startswith(text) for tag in (PARAMETER, END_FUNCTION))


def _tag(source: TextInput, opening: str, form: re.Pattern[str]) -> Steps[str | None]:
    """The name in an opening tag; None, and nothing taken, where none comes."""
    source.keep()
    if (yield from source.accept(opening)) is not None:
        pieces: list[str] = []
        end = yield from source.until([">", "\n", "<"], pieces.append)
        name = "".join(pieces)
        if end == ">" and form.fullmatch(name):
            source.let_go()
            return name
    source.go_back()
    return None


def _value(source: TextInput, answer: AnswerBuilder, schema: Any) -> Steps[bool]:
    """One value up to its end tag, without the line ends that stand around it. False where the text ends before."""
    yield from source.accept("\n")
    if is_text(schema):
        answer.arguments('"')
        end = yield from source.until([f"\n{END_PARAMETER}", END_PARAMETER], as_json_string(answer.arguments))
        if end is None:
            return False
        answer.arguments('"')
        return True
    source.keep()
    text = yield from _json_value(source, schema)
    if text is not None:
        source.let_go()
    else:
        source.go_back()
        pieces: list[str] = []
        if (yield from source.until([END_PARAMETER], pieces.append)) is None:
            return False
        text = "".join(pieces)
    answer.arguments(_converted(text, schema))
    return True


def _json_value(source: TextInput, schema: Any) -> Steps[str | None]:
    """JSON of a kind that is wanted, up to its own end and the end tag, which may also stand in one of its strings;
    None where no such thing comes.
    """
    yield from source.skip_space()
    char = yield from source.peek()
    if char not in _OPENED or not allows(schema, _OPENED[char]):
        return None
    pieces: list[str] = []
    is_whole = yield from (read_container(source, pieces.append) if char != '"' else copy_string(source, pieces.append))
    if not is_whole:
        return None
    yield from source.skip_space()
    return "".join(pieces) if (yield from source.accept(END_PARAMETER)) is not None else None


def _converted(text: str, schema: Any) -> str:
    """JSON where it is JSON (or one of Python's words), unless only a string is what the schema allows of the two."""
    bare = text.strip()
    value = _PYTHON_WORDS.get(bare, bare)
    kind = kind_of_text(value)
    if kind is not None and (allows(schema, kind) or not allows(schema, "string")):
        return value
    return json.dumps(text.removesuffix("\n"), ensure_ascii=False)
