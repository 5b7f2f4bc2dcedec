"""Calls written in Python: [name(key=value, ...), ...], as Llama 3.2, Llama 4 and Gemma 3 do when they are asked to."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from pellucid.frontend.parsing.answer_parser import ParseCalls
from pellucid.frontend.parsing.call_grammar import CallFrame, GrammarWriter, arguments_one_by_one
from pellucid.frontend.parsing.json_text import is_json
from pellucid.frontend.parsing.stream import AnswerBuilder, Steps, TextInput
from pellucid.frontend.parsing.tool_format import Call, ToolFormat
from pellucid.frontend.tools import Tool

_START, _END = "<|python_start|>", "<|python_end|>"
_FENCE, _END_FENCE = "```tool_code\n", "```"
_CLOSERS = {_START: _END, _FENCE: _END_FENCE}
_JSON_WORDS = {"true": True, "false": False, "null": None}
_NAME_CHARACTERS = frozenset("_-.:/")
# as many schemas name their arguments, and not as Python would: from, class, user-id
_KEY = re.compile(r"[^\s=,()\[\]{}'\"](?:[^\n=,()\[\]{}'\"]*[^\s=,()\[\]{}'\"])?")
MAX_CALL_LENGTH = 1 << 20


class PythonicToolFormat(ToolFormat):
    """A call stands where the answer begins, or behind a marker; one of a function that is not offered is content."""

    name = "pythonic"
    one_by_one = True
    markers = (_START, _END)

    def parser(self, tools: Sequence[Tool]) -> ParseCalls:
        return PythonicCalls({tool.name for tool in tools}).parse

    @property
    def frame(self) -> CallFrame:
        return CallFrame("[", "", ", ", "]")

    def call_term(self, writer: GrammarWriter, tool: Tool, name: str) -> str:
        def argument(key: str, schema: Any) -> str:
            return " ".join([writer.text(f"{key}="), writer.json(schema, tool.schema)])

        arguments = arguments_one_by_one(writer, tool, argument, ", ", name, _KEY)
        head = writer.text(f"{tool.name}(")
        return f'{head} {arguments} ")"'

    def calls_text(self, calls: Sequence[Call]) -> str:
        written = (f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in calls)
        return f"[{', '.join(written)}]"


class PythonicCalls:
    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def parse(self, source: TextInput, answer: AnswerBuilder) -> Steps[None]:
        source.keep()
        yield from source.skip_space()
        if (yield from self._calls(source, answer)):
            source.let_go()
        else:
            source.go_back()
        while (marker := (yield from source.until([_START, _FENCE], answer.content))) is not None:
            source.keep()
            yield from source.skip_space()
            if (yield from self._calls(source, answer)):
                source.let_go()
                yield from source.skip_space()
                yield from source.accept(_CLOSERS[marker])
            else:
                source.go_back()
                answer.content(marker)

    def _calls(self, source: TextInput, answer: AnswerBuilder) -> Steps[bool]:
        """The calls that come next. False, and nothing taken, where the first is none."""
        source.keep()
        is_list = (yield from source.accept("[")) is not None
        num_calls = 0
        while True:
            source.keep()
            if num_calls:
                yield from source.skip_space()
                yield from source.accept(",")
            yield from source.skip_space()
            call = yield from self._call(source)
            if call is None:
                source.go_back()
                break
            source.let_go()
            num_calls += 1
            answer.open_call(call[0])
            answer.arguments(call[1])
            answer.close_call()
        if not num_calls:
            source.go_back()
            return False
        source.let_go()
        if is_list:
            yield from source.skip_space()
            yield from source.accept("]")
        return True

    def _call(self, source: TextInput) -> Steps[tuple[str, str] | None]:
        """Name and arguments; the text of one call is read whole before anything is said of it."""
        name = ""
        while (char := (yield from source.peek())) and (char.isalnum() or char in _NAME_CHARACTERS):
            name += source.take(1)
        if name not in self._names or char != "(":
            return None
        text = ""
        cuts: list[int] = []  # where the arguments end
        depth, quote, escaped = 0, "", False
        while char := (yield from source.peek()):
            text += source.take(1)
            if quote:
                if not escaped and text.endswith(quote):
                    quote = ""
                escaped = char == "\\" and not escaped
            elif char in "\"'":
                quote = char
            elif char in "([{":
                depth += 1
            elif char in ")]}":
                depth -= 1
            if not quote and ((char == "," and depth == 1) or depth == 0):
                cuts.append(len(text) - 1)
            if depth == 0:
                arguments = _arguments([text[a + 1 : b] for a, b in zip([0, *cuts], cuts, strict=False)])
                return None if arguments is None else (name, arguments)
            if len(text) > MAX_CALL_LENGTH:
                return None
        return None


def _arguments(written: Sequence[str]) -> str | None:
    """["a=1", " b='x'"] as the text of a JSON object; None where one is no such thing."""
    if not written[-1].strip():  # nothing at all, or nothing after the last comma
        written = written[:-1]
    arguments: dict[str, str] = {}
    for one in written:
        key, _, text = one.partition("=")
        value = _value(text.strip())
        if value is None or _KEY.fullmatch(key.strip()) is None:
            return None
        arguments[key.strip()] = value
    return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {v}" for k, v in arguments.items()) + "}"


def _value(text: str) -> str | None:
    """A value as JSON, which it may be already; None for anything but a literal. Nothing is run."""
    if is_json(text):
        return text
    try:
        return json.dumps(_literal(ast.parse(text, mode="eval").body), ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _literal(node: ast.expr) -> Any:
    """A Python literal, in which JSON's words may stand too. Raises ValueError for anything else."""
    if isinstance(node, ast.Name) and node.id in _JSON_WORDS:
        return _JSON_WORDS[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_literal(key) for key in node.keys if key is not None]
        return dict(zip(map(str, keys), map(_literal, node.values), strict=True))
    value = ast.literal_eval(node)
    if isinstance(value, str):  # JSON spells characters beyond the first plane in halves
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value
