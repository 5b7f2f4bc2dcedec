"""What a family of models writes to call functions, and what is told to one that has no words of its own for it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pellucid.frontend.parsing.answer_parser import ParseCalls
from pellucid.frontend.parsing.call_grammar import CallFrame, GrammarWriter, closed
from pellucid.frontend.parsing.json_calls import JsonCalls
from pellucid.frontend.tools import JsonObject, Tool

Call = tuple[str, JsonObject]  # name and arguments


class ToolFormat:
    """name: as --tool-call-parser takes it. markers: what begins, ends or separates calls; where the vocabulary has
    them as special tokens, they stay in the text.
    """

    name: str
    markers: tuple[str, ...] = ()
    one_by_one: bool = False  # arguments stand one after another, not as one JSON object

    def parser(self, tools: Sequence[Tool]) -> ParseCalls:
        raise NotImplementedError

    def calls_text(self, calls: Sequence[Call]) -> str:
        """The calls as the model writes them."""
        raise NotImplementedError

    @property
    def frame(self) -> CallFrame:
        raise NotImplementedError

    @property
    def marked_frame(self) -> CallFrame:
        """For where an answer without calls may be JSON too: with a marker that tells the two apart."""
        return self.frame

    def call_term(self, writer: GrammarWriter, tool: Tool, name: str) -> str:
        """One call, without what the frame puts around it. name: what the rules that it needs begin with. Raises
        CallSchemaError.
        """
        raise NotImplementedError

    def instructions(self, tools: Sequence[Tool]) -> str:
        """A system text for a model whose chat template does not speak of tools."""
        described = "\n".join(_json(tool.as_templates_read_it()["function"]) for tool in tools)
        example = self.calls_text([("FUNCTION", {"ARGUMENT": "VALUE"})])
        return (
            "You can call functions. Each of these is a function, with the JSON schema of its arguments:\n"
            f"<tools>\n{described}\n</tools>\n"
            f"To call one, answer with nothing but this, filled in:\n{example}\n"
            "You are then given what it returned. Where no function is needed, answer in words."
        )


@dataclass(frozen=True)
class JsonToolFormat(ToolFormat):
    """A call is {"name": ..., ARGUMENTS_KEY: {...}}, or all calls are an array of these."""

    name: str
    opener: str
    closer: str | None = None
    arguments_key: str = "arguments"
    is_array: bool = False  # one pair of markers around all calls
    bare: bool = False  # the opener may be missing where the answer begins with a call

    @property
    def markers(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.opener,) if self.closer is None else (self.opener.strip(), self.closer.strip())

    def parser(self, tools: Sequence[Tool]) -> ParseCalls:
        names: Collection[str] = {tool.name for tool in tools} if self.bare else ()
        return JsonCalls(self.markers[0], self.closer and self.closer.strip(), names).parse

    @property
    def frame(self) -> CallFrame:
        if self.bare:
            return CallFrame(separator="; ")
        if self.is_array:
            return CallFrame(f"{self.opener}[", "", ", ", f"]{self.closer or ''}", self.opener)
        return CallFrame(call_open=self.opener, separator="\n", trigger=self.markers[0])

    @property
    def marked_frame(self) -> CallFrame:
        return replace(self.frame, open=self.opener, trigger=self.opener) if self.bare else self.frame

    def call_term(self, writer: GrammarWriter, tool: Tool, name: str) -> str:
        head = f'{{"name": {json.dumps(tool.name)}, "{self.arguments_key}": '
        tail = "}" if self.is_array or self.closer is None else "}" + self.closer
        return f"{writer.text(head)} {writer.json(closed(tool.schema))} {writer.text(tail)}"

    def calls_text(self, calls: Sequence[Call]) -> str:
        objects = [_json({"name": name, self.arguments_key: arguments}) for name, arguments in calls]
        opener = "" if self.bare else self.opener
        if self.is_array:
            return f"{opener}[{', '.join(objects)}]{self.closer or ''}"
        if self.closer is None:
            return opener + "; ".join(objects)
        return "\n".join(f"{opener}{text}{self.closer}" for text in objects)


def _json(value: JsonObject) -> str:
    return json.dumps(value, ensure_ascii=False)


HERMES = JsonToolFormat("hermes", "<tool_call>\n", "\n</tool_call>")
SMOLLM = replace(HERMES, name="smollm", opener="<tool_call>", closer="</tool_call>", is_array=True)
LLAMA3_JSON = JsonToolFormat("llama3_json", "<|python_tag|>", arguments_key="parameters", bare=True)
