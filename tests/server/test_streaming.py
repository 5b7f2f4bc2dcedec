"""A stream of events, whose client may stop reading at any write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from pellucid.server.errors import ApiError
from pellucid.server.http_protocol import CUT_OFF, IS_FULL
from pellucid.server.middleware.context import RequestRecord
from pellucid.server.options import ServerOptions
from pellucid.server.streaming import COMMENT_PING, EventStream


class SilentSource:
    """One output, then nothing."""

    def __init__(self) -> None:
        self.is_closed = False
        self._said = False

    def listen(self, listener: Callable[[], bool]) -> None: ...

    def take(self) -> None: ...

    def __aiter__(self) -> SilentSource:
        return self

    async def __anext__(self) -> tuple[int, str]:
        if self._said:
            await asyncio.Event().wait()
        self._said = True
        return 0, "x"

    async def aclose(self) -> None:
        self.is_closed = True


class Writer:
    def output(self, prompt_index: int, output: Any) -> bytes:
        return b"data: x\n\n"

    async def end(self) -> bytes:
        return b""

    def ping(self) -> bytes:
        return COMMENT_PING

    async def error(self, error: ApiError) -> bytes:
        return b""


@pytest.mark.parametrize("blocking", [b"data: x\n\n", COMMENT_PING], ids=["an output", "a ping"])
async def test_a_client_that_reads_no_more_is_let_go_whichever_write_blocks(blocking: bytes) -> None:
    """A server's `send` returns while there is room in the buffers, and waits at the next write."""
    cut_off: list[bool] = []
    record = RequestRecord("req_x", "POST", time.monotonic())
    source = SilentSource()
    stream = EventStream(source, Writer(), ServerOptions(ping_interval_s=0.02, write_timeout_s=0.1))

    async def send(message: Any) -> None:
        if message.get("body") == blocking:
            await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "state": {"record": record, CUT_OFF: lambda: cut_off.append(True)}}
    await asyncio.wait_for(stream(scope, receive, send), 20)
    assert (record.outcome, cut_off, source.is_closed) == ("write_timeout", [True], True)


class ToldSource:
    """What a test says is told to the listener where the stream waits, and otherwise waits itself."""

    def __init__(self) -> None:
        self.num_wakings = 0
        self._listener: Callable[[], bool] | None = None
        self._unread: list[Any] = []
        self._news = asyncio.Event()

    def say(self, text: str) -> None:
        self._unread.append(text)
        if self._listener is None or not self._listener():
            self._news.set()

    def end(self) -> None:
        self._unread.append(None)
        self._news.set()

    def listen(self, listener: Callable[[], bool]) -> None:
        self._listener = listener

    def take(self) -> tuple[int, Any] | None:
        unread, self._unread = self._unread, []
        return (0, "".join(unread)) if unread else None

    def __aiter__(self) -> ToldSource:
        return self

    async def __anext__(self) -> tuple[int, Any]:
        await self._news.wait()
        self._news.clear()
        self.num_wakings += 1
        if self._unread[-1] is None:
            raise StopAsyncIteration
        news = self.take()
        assert news is not None
        return news

    async def aclose(self) -> None: ...


class Echo(Writer):
    def output(self, prompt_index: int, output: Any) -> bytes:
        if output == "bad":
            raise ValueError("a mistake of the writer's")
        return output.encode()

    async def end(self) -> bytes:
        return b"."

    async def error(self, error: ApiError) -> bytes:
        return b"!"


class Connection:
    """Full: it takes nothing until it is read from."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.has_room = asyncio.Event()
        self.has_room.set()

    async def send(self, message: Any) -> None:
        await self.has_room.wait()
        if message["type"] == "http.response.body":
            self.written.append(message["body"])

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    def serve(self, stream: EventStream) -> asyncio.Task[None]:
        record = RequestRecord("req_x", "POST", time.monotonic(), send=self.send)
        scope = {"type": "http", "state": {"record": record, IS_FULL: lambda: not self.has_room.is_set()}}
        return asyncio.create_task(stream(scope, self.receive, self.send))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_news_are_written_where_they_are_told_and_by_the_task_only_where_they_must_wait() -> None:
    source, connection = ToldSource(), Connection()
    task = connection.serve(EventStream(source, Echo(), ServerOptions()))
    await settle()
    source.say("a")  # the head of the response is the task's
    await settle()
    source.say("b")
    source.say("c")
    assert connection.written == [b"a", b"b", b"c"]
    assert source.num_wakings == 1
    connection.has_room.clear()
    source.say("d")
    await settle()
    source.say("e")  # while the task waits with the last one
    await settle()
    assert connection.written == [b"a", b"b", b"c"]
    connection.has_room.set()
    await settle()
    source.say("f")
    source.end()
    await asyncio.wait_for(task, 20)
    assert connection.written == [b"a", b"b", b"c", b"d", b"e", b"f", b"."]


async def test_a_mistake_in_the_midst_of_a_stream_ends_it_with_an_error() -> None:
    """Which the source raises to the task, as RequestStream does."""
    source, connection = ToldSource(), Connection()
    task = connection.serve(EventStream(source, Echo(), ServerOptions()))
    await settle()
    source.say("a")
    await settle()
    with pytest.raises(ValueError, match="a mistake"):
        source.say("bad")
    source._unread = ["bad"]
    source._news.set()
    with pytest.raises(ValueError, match="a mistake"):
        await asyncio.wait_for(task, 20)
    assert connection.written == [b"a", b"!"]
