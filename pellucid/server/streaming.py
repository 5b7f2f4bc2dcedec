"""Server-sent events: one write per wake-up of a stream, and a client that leaves or does not read costs nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pellucid.frontend.outputs import RequestOutput
from pellucid.server.errors import ApiError, internal
from pellucid.server.generation import Generation
from pellucid.server.http_protocol import CUT_OFF, IS_FULL
from pellucid.server.middleware.context import RequestRecord, record_of
from pellucid.server.options import ServerOptions

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]
COMMENT_PING = b": ping\n\n"


class Source(Protocol):
    """What a stream is read from: a Generation, or something stored that is read again."""

    def __aiter__(self) -> Source: ...

    async def __anext__(self) -> tuple[int, Any]: ...

    def listen(self, listener: Callable[[], bool]) -> None: ...

    def take(self) -> tuple[int, Any] | None: ...

    async def aclose(self) -> None: ...


class EventWriter(Protocol):
    """A dialect's half of a stream: outputs of the source in, bytes of events out (perhaps none)."""

    def output(self, prompt_index: int, output: Any) -> bytes: ...

    async def end(self) -> bytes:
        """After the last output: usage, terminator."""
        ...

    def ping(self) -> bytes:
        """What keeps a silent stream open; also the first that is sent of a stream that has not begun."""
        ...

    async def error(self, error: ApiError) -> bytes:
        """Instead of all that would follow."""
        ...


class EventStream(Response):
    """Reads a generation and writes it. Headers are sent with the first event, so that an error before it has a status;
    a stream that stays silent for longer gets its headers and a ping, which keeps proxies and clients patient.

    A task reads and writes. But what comes while it waits for news is written from where they are told (`_on_news`) as
    long as the connection takes it: waking a task through all the layers around it costs more than all else of a token.

    headers: sent beside those of every stream.
    """

    def __init__(
        self,
        generation: Source,
        writer: EventWriter,
        options: ServerOptions,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._head = _HEADERS + [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self._generation = generation
        self._writer = writer
        self._ping_interval_s = options.ping_interval_s
        self._write_timeout_s = options.write_timeout_s
        self._started = False
        self._writing_since: float | None = None
        self._last_write = 0.0
        self._stopped_for: str | None = None
        self._loop = asyncio.get_running_loop()
        self._is_full: Callable[[], bool] | None = None  # None: not known, and then nothing is written but by the task
        self._send: Send | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        self._is_full, self._send = scope["state"].get(IS_FULL), record.send
        if self._is_full is not None and self._send is not None:
            self._generation.listen(self._on_news)
        task = asyncio.current_task()
        assert task is not None
        helpers = [
            asyncio.create_task(self._watch_client(receive, task)),
            asyncio.create_task(self._keep_house(scope, send, task)),
        ]
        try:
            await self._run(send, record)
        except asyncio.CancelledError:
            if self._stopped_for is None:  # cancelled from outside
                raise
            record.outcome = self._stopped_for
        finally:
            for helper in helpers:
                helper.cancel()
            await self._generation.aclose()

    async def _run(self, send: Send, record: RequestRecord) -> None:
        try:
            async for index, output in self._generation:
                if data := self._writer.output(index, output):
                    await self._write(send, data)
            last = await self._writer.end()
        except ApiError as error:
            if not self._started:
                raise
            record.outcome = "stream_error"
            last = await self._writer.error(error)
        except Exception:
            if self._started:
                await self._write(send, await self._writer.error(internal()))
            raise
        await self._write(send, last, more_body=False)

    def _on_news(self) -> bool:
        """Write what is new now, if that does not have to wait for the client. Returns whether it was done."""
        assert self._is_full is not None and self._send is not None  # noqa: PT018
        if not self._started or self._writing_since is not None or self._is_full():
            return False
        news = self._generation.take()
        if news is not None and (data := self._writer.output(*news)):
            self._last_write = self._loop.time()
            _run_through(self._send({"type": "http.response.body", "body": data, "more_body": True}))
        return True

    async def _write(self, send: Send, data: bytes, more_body: bool = True) -> None:
        self._writing_since = self._last_write = self._loop.time()
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": list(self._head)})
        await send({"type": "http.response.body", "body": data, "more_body": more_body})
        self._writing_since = None

    async def _watch_client(self, receive: Receive, task: asyncio.Task[None]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._stop(task, "client_left")

    async def _keep_house(self, scope: Scope, send: Send, task: asyncio.Task[None]) -> None:
        """Pings a silent stream, ends one whose client takes nothing. Costs a wake-up in a while, none per token."""
        loop = asyncio.get_running_loop()
        self._last_write = loop.time()
        interval_s = min(self._ping_interval_s or 3600.0, self._write_timeout_s / 2 or 3600.0)
        while True:
            await asyncio.sleep(interval_s)
            now = loop.time()
            if self._writing_since is not None:
                if self._write_timeout_s and now - self._writing_since > self._write_timeout_s:
                    self._cut_off(scope, task)
            elif self._ping_interval_s and now - self._last_write >= self._ping_interval_s:
                try:  # a ping may be what blocks, and nobody else watches the time meanwhile
                    await asyncio.wait_for(self._write(send, self._writer.ping()), self._write_timeout_s or None)
                except TimeoutError:
                    self._cut_off(scope, task)
                except Exception:
                    pass  # the client is gone, which `_watch_client` hears

    def _cut_off(self, scope: Scope, task: asyncio.Task[None]) -> None:
        self._stop(task, "write_timeout")
        if (close := scope["state"].get(CUT_OFF)) is not None:  # closing would wait for what the client does not read
            close()

    def _stop(self, task: asyncio.Task[None], why: str) -> None:
        if self._stopped_for is None:
            self._stopped_for = why
            task.cancel()


def _run_through(work: Awaitable[None]) -> None:
    """An await, where there is nothing to wait for."""
    for _ in work.__await__():
        raise RuntimeError("a connection that was not full made its writer wait")


async def collect(generation: Generation, receive: Receive, record: RequestRecord) -> list[RequestOutput] | None:
    """The finished outputs, one per prompt; None where the client left before: there is nobody to answer."""
    work = asyncio.ensure_future(generation.finals())
    leaving = asyncio.ensure_future(_client_leaves(receive))
    try:
        await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            record.outcome = "client_left"
            return None
        return await work
    finally:
        leaving.cancel()
        if not work.done():
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
        await generation.aclose()


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
