"""The items of an answer, each of which writes its own events: added, its parts and deltas, done."""

from __future__ import annotations

from typing import Any, Protocol

from pellucid.server.conversation import JsonObject
from pellucid.server.responses_api import reasoning
from pellucid.server.responses_api.custom_input import CustomInput
from pellucid.server.responses_api.ids import new_id
from pellucid.server.responses_api.tools import ClientName


class Emit(Protocol):
    def __call__(self, type: str, **fields: Any) -> None: ...


class OutputItem:
    """value: the item as it is in the response; whole after `close`. status: completed, or incomplete where it ends
    because the answer does.
    """

    def __init__(self, emit: Emit, index: int, value: JsonObject) -> None:
        self.value = value
        self._emit = emit
        self._place: JsonObject = {"item_id": value["id"], "output_index": index}
        self._pieces: list[str] = []
        emit("response.output_item.added", output_index=index, item=value)

    def close(self, status: str) -> None:
        self.value["status"] = status
        self._emit("response.output_item.done", output_index=self._place["output_index"], item=self.value)

    @property
    def _text(self) -> str:
        return "".join(self._pieces)


class MessageItem(OutputItem):
    def __init__(self, emit: Emit, index: int, *, with_logprobs: bool) -> None:
        value = {
            "id": new_id("message"),
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        super().__init__(emit, index, value)
        self._place |= {"content_index": 0}
        self._logprobs: list[JsonObject] | None = [] if with_logprobs else None
        emit("response.content_part.added", **self._place, part=self._part(""))

    def push(self, text: str, logprobs: list[JsonObject]) -> None:
        self._pieces.append(text)
        if self._logprobs is not None:
            self._logprobs += logprobs
        self._emit("response.output_text.delta", **self._place, delta=text, logprobs=logprobs)

    def close(self, status: str) -> None:
        text = self._text
        part = self._part(text)
        self.value["content"] = [part]
        self._emit("response.output_text.done", **self._place, text=text, logprobs=self._logprobs or [])
        self._emit("response.content_part.done", **self._place, part=part)
        super().close(status)

    def _part(self, text: str) -> JsonObject:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs or []}


class ReasoningItem(OutputItem):
    """as_summary: the client asked for a summary and gets the reasoning there, else as the item's content."""

    def __init__(self, emit: Emit, index: int, *, as_summary: bool, encrypted: bool) -> None:
        value: JsonObject = {"id": new_id("reasoning"), "type": "reasoning", "status": "in_progress", "summary": []}
        super().__init__(emit, index, value)
        self._encrypted = encrypted
        self._as_summary = as_summary
        self._place |= {"summary_index" if as_summary else "content_index": 0}
        self._part_event = "response.reasoning_summary_part" if as_summary else "response.content_part"
        self._text_event = "response.reasoning_summary_text" if as_summary else "response.reasoning_text"
        emit(f"{self._part_event}.added", **self._place, part=self._part(""))

    def push(self, text: str) -> None:
        self._pieces.append(text)
        self._emit(f"{self._text_event}.delta", **self._place, delta=text)

    def close(self, status: str) -> None:
        text = self._text
        part = self._part(text)
        self.value["summary" if self._as_summary else "content"] = [part]
        if self._encrypted:
            self.value["encrypted_content"] = reasoning.encode(text)
        self._emit(f"{self._text_event}.done", **self._place, text=text)
        self._emit(f"{self._part_event}.done", **self._place, part=part)
        super().close(status)

    def _part(self, text: str) -> JsonObject:
        return {"type": "summary_text" if self._as_summary else "reasoning_text", "text": text}


class CallItem(OutputItem):
    """A call of a function or of a custom tool, under the name the client knows."""

    def __init__(self, emit: Emit, index: int, tool: ClientName) -> None:
        self._is_custom = tool.kind == "custom"
        self._kind = "custom_tool_call" if self._is_custom else "function_call"
        self._field = "input" if self._is_custom else "arguments"
        self._event = f"response.{'custom_tool_call_input' if self._is_custom else 'function_call_arguments'}"
        self._input = CustomInput() if self._is_custom else None
        value = {
            "id": new_id(self._kind),
            "type": self._kind,
            "status": "in_progress",
            "call_id": new_id("call"),
            "name": tool.name,
            self._field: "",
        }
        if tool.namespace is not None:
            value["namespace"] = tool.namespace
        super().__init__(emit, index, value)

    def push(self, arguments: str) -> None:
        self._say(arguments if self._input is None else self._input.push(arguments))

    def close(self, status: str) -> None:
        if self._input is not None:
            self._say(self._input.finish())
        text = self._text
        if not text and not self._is_custom and status == "completed":
            text = "{}"  # a call without arguments
            self._say(text)
        self.value[self._field] = text
        self._emit(f"{self._event}.done", **self._place, **{self._field: text})
        super().close(status)

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._emit(f"{self._event}.delta", **self._place, delta=text)
