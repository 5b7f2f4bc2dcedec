"""One page's stream of events: ten messages a second at most, bounded, and gone with the page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pellucid.core.messages import SchedulerStats
from pellucid.observability.events import Event, StepCompleted, StepStarted, TokensSampled, TokensScheduled
from pellucid.server.http_protocol import CUT_OFF
from pellucid.server.state import ServerState

MAX_STREAMS = 16
MAX_UNSENT_EVENTS = 20_000
INTERVAL_S = 0.1
PAST_EVENTS = 1000

_NOT_SHOWN = (TokensSampled, TokensScheduled)  # the page counts tokens by the steps
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def _told_at(event: Event) -> float:
    """A step is told when it is over, after all that happened in it, while its `time` is that of its start."""
    return event.time + event.duration_s if isinstance(event, StepCompleted) else event.time


def _whole_steps(events: list[Event]) -> list[Event]:
    """Without the ends of steps whose beginning was cut off."""
    started = {event.step for event in events if isinstance(event, StepStarted)}
    return [event for event in events if not isinstance(event, StepCompleted) or event.step in started]


class EngineStream(Response):
    """A message is {now, events, stats}; the first one has `hello` and what happened lately, the next begins with an
    EngineSnapshot. A page that falls behind loses what it did not read, and gets a snapshot again.
    """

    def __init__(self, state: ServerState, hello: dict[str, Any]) -> None:
        super().__init__()
        self._state = state
        self._llm = state.engine()
        self._hello = hello
        self._events: list[Event] = []
        self._stats: SchedulerStats | None = None
        self._news = asyncio.Event()
        self._fell_behind = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._run(scope, send))
        leaving = asyncio.create_task(_disconnected(receive))
        self._state.num_engine_streams += 1
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            self._state.num_engine_streams -= 1
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _run(self, scope: Scope, send: Send) -> None:
        options = self._state.options
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        past = _whole_steps(sorted(self._state.observers.history.events(), key=_told_at)[-PAST_EVENTS:])
        with self._llm.watchers.watch(self._on_events):
            message: dict[str, Any] | None = self._message(past) | {"hello": self._hello}
            while not self._state.draining:
                data = b"data: " + msgspec.json.encode(message) + b"\n\n" if message else b": ping\n\n"
                writing = send({"type": "http.response.body", "body": data, "more_body": True})
                try:
                    await asyncio.wait_for(writing, options.write_timeout_s or None)
                except asyncio.TimeoutError:
                    if (cut_off := scope["state"].get(CUT_OFF)) is not None:
                        cut_off()
                    return
                message = await self._next(options.ping_interval_s or 3600.0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self, patience_s: float) -> dict[str, Any] | None:
        """What is new, or None after so long without; looks up now and then to see the server stop."""
        end = time.monotonic() + patience_s
        await asyncio.sleep(INTERVAL_S)
        while not self._news.is_set() and time.monotonic() < end and not self._state.draining:
            try:
                await asyncio.wait_for(self._news.wait(), min(1.0, patience_s))
            except asyncio.TimeoutError:
                continue
        if not self._news.is_set():
            return None
        self._news.clear()
        events, self._events = self._events, []
        if self._fell_behind:
            self._fell_behind = False
            self._llm.client.watch(True)  # begin again, with a snapshot
        return self._message(events)

    def _message(self, events: Sequence[Event]) -> dict[str, Any]:
        return {"now": time.time(), "events": events, "stats": self._stats or self._llm.stats}

    def _on_events(self, events: Sequence[Event], stats: SchedulerStats) -> None:
        self._stats = stats
        self._events += [event for event in events if not isinstance(event, _NOT_SHOWN)]
        if len(self._events) > MAX_UNSENT_EVENTS:
            self._events.clear()
            self._fell_behind = True
        self._news.set()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
