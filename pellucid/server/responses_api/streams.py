"""The two kinds of stream: an answer as it is generated, and the kept events of a background response."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from pellucid.frontend.outputs import RequestOutput
from pellucid.server.errors import ApiError
from pellucid.server.generation import Generation
from pellucid.server.responses_api import records
from pellucid.server.responses_api.answer import AnswerReader
from pellucid.server.responses_api.events import Event
from pellucid.server.responses_api.store import ResponseStore
from pellucid.server.streaming import COMMENT_PING

POLL_S = 0.1


def frames(events: list[Event]) -> bytes:
    return b"".join([event.frame() for event in events])


class ResponseWriter:
    """keep: stores the finished or failed response, before the last event says that it is. Raises ApiError."""

    def __init__(self, generation: Generation, reader: AnswerReader, keep: Callable[[], Awaitable[None]]) -> None:
        self._generation = generation
        self._reader = reader
        self._keep = keep
        self._last: list[Event] = []  # not sent yet, but for the terminal one
        self._is_to_be_kept = True

    def output(self, prompt_index: int, output: RequestOutput) -> bytes:
        return self._begin() + frames(self._reader.take(output.outputs[0]))

    async def end(self) -> bytes:
        self._last = await self._reader.end(self._generation.usage())
        self._is_to_be_kept = False
        await self._keep()  # where that fails, `error` says the last events
        return frames([*self._last, self._reader.state.terminal()])

    def ping(self) -> bytes:
        """No comment: clients of this dialect have been seen to count events only."""
        return self._begin() or frames(self._reader.state.start())

    async def error(self, error: ApiError) -> bytes:
        state = self._reader.state
        begun = self._begin()
        events = [*self._last, *state.fail(error)]
        if self._is_to_be_kept:
            with contextlib.suppress(ApiError):  # the client hears of the first failure, the store tells of its own
                await self._keep()
        return begun + frames([*events, state.terminal()])

    def _begin(self) -> bytes:
        state = self._reader.state
        return b"" if state.has_begun else frames(state.begin())


class KeptEvents:
    """The events of a stored response after `sequence_number`, in order, until there can't be more: a Source. It does
    not matter which server writes them.
    """

    def __init__(self, store: ResponseStore, response_id: str, sequence_number: int) -> None:
        self._store = store
        self._response_id = response_id
        self._last = sequence_number
        self._is_open = True

    def __aiter__(self) -> KeptEvents:
        return self

    async def __anext__(self) -> tuple[int, list[Event]]:
        while self._is_open:
            events, self._is_open = await self._store.call(records.events_after, self._response_id, self._last)
            if events:
                self._last = events[-1].sequence_number
                return 0, events
            if self._is_open:
                await asyncio.sleep(POLL_S)
        raise StopAsyncIteration

    def listen(self, listener: Callable[[], bool]) -> None:
        """The store tells nothing by itself."""

    def take(self) -> None:
        """Only a listener is asked to."""

    async def aclose(self) -> None:
        """Nothing is held."""


class KeptEventsWriter:
    """Events are sent as they were written. Those are numbered, so a silent stream is kept open by comments."""

    def output(self, prompt_index: int, output: list[Event]) -> bytes:
        return frames(output)

    async def end(self) -> bytes:
        return b""

    def ping(self) -> bytes:
        return COMMENT_PING

    async def error(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + error.encode() + b"\n\n"
