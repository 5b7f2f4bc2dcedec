"""From AnswerDeltas to the events of a response, and to the response itself: one state machine for streamed, stored
and whole answers.

    created (queued) in_progress  { output_item.added ... output_item.done }*  completed | incomplete | failed

Every event has the next sequence number. At most one item is open; another kind of delta closes it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from pellucid.core.messages import FinishReason
from pellucid.frontend.answer import AnswerDelta, ToolCallDelta
from pellucid.server.conversation import JsonObject
from pellucid.server.errors import ApiError
from pellucid.server.responses_api.output import CallItem, MessageItem, OutputItem, ReasoningItem
from pellucid.server.responses_api.tools import Toolbox

TERMINAL = ("completed", "incomplete", "failed", "cancelled")


class Event(NamedTuple):
    sequence_number: int
    type: str
    data: bytes  # JSON

    def frame(self) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (self.type.encode(), self.data)


def make_event(sequence_number: int, type: str, **fields: Any) -> Event:
    return Event(
        sequence_number, type, msgspec.json.encode({"type": type, "sequence_number": sequence_number, **fields})
    )


@dataclass(frozen=True)
class OutputOptions:
    """What a request says about the form of its answer. max_calls: None: no limit."""

    reasoning_as_summary: bool = False
    encrypted_reasoning: bool = False
    logprobs: bool = False
    max_calls: int | None = None


class ResponseEvents:
    """response: the object so far, as it would be stored; its output fills as items close."""

    def __init__(self, response: JsonObject, toolbox: Toolbox, options: OutputOptions) -> None:
        self.response = response
        self.has_begun = False
        self._toolbox = toolbox
        self._options = options
        self._next = 0
        self._events: list[Event] = []
        self._open: OutputItem | None = None
        self._call_index: int | None = None  # of the open call
        self._num_calls = 0

    def begin(self, *, queued: bool = False) -> list[Event]:
        """queued: it waits, and `start` says when it no longer does."""
        self.has_begun = True
        self.response["status"] = "queued" if queued else "in_progress"
        self._lifecycle("created")
        self._lifecycle("queued" if queued else "in_progress")
        return self._take()

    def start(self) -> list[Event]:
        """It is being worked on; also said again, to keep a silent stream open."""
        self.response["status"] = "in_progress"
        self._lifecycle("in_progress")
        return self._take()

    def add(self, delta: AnswerDelta, logprobs: list[JsonObject] | None = None) -> list[Event]:
        """logprobs: of the tokens of delta.content."""
        if delta.reasoning:
            self._reasoning().push(delta.reasoning)
        if delta.content:
            self._message().push(delta.content, logprobs or [])
        for call in delta.tool_calls:
            self._add_call(call)
        return self._take()

    def end(self, reason: FinishReason, usage: JsonObject, *, cut_off: bool = False) -> list[Event]:
        """The last events; `response` is whole then. Its last one is the state's own: see `terminal`.

        cut_off: the last call lacks some of its arguments, though nothing limited the answer (a stop string did it).
        """
        is_whole = reason is not FinishReason.LENGTH
        if is_whole and self._open is None and not self.response["output"]:
            self._message()  # an answer may be empty, but it is one
        self._close("completed" if is_whole and not cut_off else "incomplete")
        self.response |= {"status": "completed" if is_whole else "incomplete", "usage": usage}
        if is_whole:
            self.response["completed_at"] = int(time.time())
        else:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        return self._take()

    def fail(self, error: ApiError) -> list[Event]:
        """Instead of `end`. What was said so far stays, as incomplete."""
        self._close("incomplete")
        code = "rate_limit_exceeded" if error.code == "queue_full" else "server_error"
        self.response |= {
            "status": "failed",
            "completed_at": None,
            "incomplete_details": None,
            "error": {"code": code, "message": error.message},
        }
        return self._take()

    def terminal(self) -> Event:
        """response.completed, .incomplete or .failed: the very last event."""
        self._lifecycle(self.response["status"])
        return self._take()[0]

    # items -----------------------------------------------------------------------------------------------------------

    def _reasoning(self) -> ReasoningItem:
        if not isinstance(self._open, ReasoningItem):
            options = self._options
            self._close("completed")
            self._open = ReasoningItem(
                self._emit,
                len(self.response["output"]),
                as_summary=options.reasoning_as_summary,
                encrypted=options.encrypted_reasoning,
            )
        return self._open

    def _message(self) -> MessageItem:
        if not isinstance(self._open, MessageItem):
            self._close("completed")
            self._open = MessageItem(self._emit, len(self.response["output"]), with_logprobs=self._options.logprobs)
        return self._open

    def _add_call(self, delta: ToolCallDelta) -> None:
        if delta.name is not None:
            self._num_calls += 1
        if self._options.max_calls is not None and self._num_calls > self._options.max_calls:
            return
        if delta.name is not None:
            self._close("completed")
            tool = self._toolbox.client_name(delta.name)
            self._open = CallItem(self._emit, len(self.response["output"]), tool)
            self._call_index = delta.index
        assert isinstance(self._open, CallItem) and delta.index == self._call_index  # noqa: PT018
        if delta.arguments:
            self._open.push(delta.arguments)

    def _close(self, status: str) -> None:
        if self._open is not None:
            self._open.close(status)
            self.response["output"].append(self._open.value)
            self._open = None

    # events ----------------------------------------------------------------------------------------------------------

    def _lifecycle(self, name: str) -> None:
        self._emit(f"response.{name}", response=self.response)

    def _emit(self, type: str, **fields: Any) -> None:
        self._events.append(make_event(self._next, type, **fields))
        self._next += 1

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events
