"""A stream of events, whose client may stop reading at any write."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pellucid.server.errors import ApiError
from pellucid.server.http_protocol import CUT_OFF
from pellucid.server.middleware.context import RequestRecord
from pellucid.server.options import ServerOptions
from pellucid.server.streaming import COMMENT_PING, EventStream


class SilentSource:
    """One output, then nothing."""

    def __init__(self) -> None:
        self.is_closed = False
        self._said = False

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
