"""An answer as Anthropic's content blocks: each begins once, grows, and ends before the next one begins."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Iterable
from typing import Any

from pellucid.frontend.answer import AnswerDelta, ToolCallDelta

Event = dict[str, Any]


class ContentBlocks:
    """Deltas of an answer in, content_block_* events out. The whole answer is what its events add up to.

    A text that is nothing but white space makes no block: clients send blocks back, and Anthropic refuses such.
    """

    def __init__(self) -> None:
        self.has_tool_use = False
        self._index = -1
        self._open: str | None = None  # the type of the block that has not ended
        self._call: int | None = None  # which of the calls it is
        self._blank = ""  # white space that may yet begin a text
        self._thought = hashlib.blake2b()  # of the block that is open; its signature

    def push(self, delta: AnswerDelta) -> list[Event]:
        events: list[Event] = []
        if delta.reasoning:
            if self._open != "thinking":
                self._thought = hashlib.blake2b(digest_size=32)
            self._begin("thinking", {"thinking": "", "signature": ""}, events)
            self._thought.update(delta.reasoning.encode("utf-8", "surrogatepass"))
            events.append(self._delta({"type": "thinking_delta", "thinking": delta.reasoning}))
        if delta.content:
            self._push_text(delta.content, events)
        for call in delta.tool_calls:
            self._push_call(call, events)
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        self._end(events)
        return events

    def _push_text(self, text: str, events: list[Event]) -> None:
        if self._open != "text":
            self._blank += text
            if not self._blank.strip():
                return
            text = self._blank
        self._begin("text", {"text": ""}, events)
        events.append(self._delta({"type": "text_delta", "text": text}))

    def _push_call(self, call: ToolCallDelta, events: list[Event]) -> None:
        if self._open != "tool_use" or self._call != call.index:
            self._end(events)
            self._call, self.has_tool_use = call.index, True
            start = {"id": f"toolu_{uuid.uuid4().hex[:24]}", "name": call.name or "", "input": {}}
            self._begin("tool_use", start, events)
        if call.arguments:
            events.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))

    def _begin(self, kind: str, start: dict[str, Any], events: list[Event]) -> None:
        if self._open == kind:
            return
        self._end(events)
        self._open, self._blank = kind, ""
        self._index += 1
        block = {"type": kind, **start}
        events.append({"type": "content_block_start", "index": self._index, "content_block": block})

    def _end(self, events: list[Event]) -> None:
        if self._open is None:
            return
        if self._open == "thinking":
            signature = base64.b64encode(self._thought.digest()).decode()
            events.append(self._delta({"type": "signature_delta", "signature": signature}))
        events.append({"type": "content_block_stop", "index": self._index})
        self._open = None

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


# what each kind of delta adds to, by its own name for it
_FIELDS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "arguments"),
}


def whole_blocks(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The blocks that the events of an answer add up to."""
    blocks: list[dict[str, Any]] = []
    pieces: list[dict[str, list[str]]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
            pieces.append({})
        elif event["type"] == "content_block_delta":
            given, name = _FIELDS[event["delta"]["type"]]
            pieces[-1].setdefault(name, []).append(event["delta"][given])
    for block, gathered in zip(blocks, pieces, strict=True):
        texts = {name: "".join(parts) for name, parts in gathered.items()}
        if block["type"] == "tool_use":
            block["input"] = _input(texts.get("arguments", ""))
        else:
            block.update(texts)
    return blocks


def _input(arguments: str) -> dict[str, Any]:
    """The call's arguments; of one that max_tokens cut off, what is whole: as the SDKs read a stream that ends so."""
    import jiter  # what both SDKs parse with

    try:
        value = jiter.from_json(arguments.encode() or b"{}", partial_mode=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
