"""A process that this one starts, speaks to and outlives: its start, its end of the line, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar, cast

import msgspec

from pellucid.engine.wire import FrameReader, WireError, encode_frame

Received = TypeVar("Received")


class ChildProcess(asyncio.Protocol, Generic[Received]):
    """A `pellucid` subcommand at the other end of an inherited socket pair. Made by `start`, then `connect`; gone when
    the line is closed, from whichever side.
    """

    def __init__(self, popen: subprocess.Popen[bytes], sock: socket.socket, reader: FrameReader[Received]) -> None:
        self.pid = popen.pid
        self.error: str | None = None  # what was wrong with what it sent
        self._popen = popen
        self._sock = sock
        self._reader = reader
        self._gone = asyncio.Event()
        self._transport: asyncio.WriteTransport | None = None
        self._on_messages: Callable[[Iterable[Received]], None] | None = None
        self._backlog: list[msgspec.Struct] = []

    @staticmethod
    def start(subcommand: str, *arguments: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Run `pellucid SUBCOMMAND --fd N ARGUMENTS`; returns it with our end of the line. Raises OSError.

        Called on a thread that lives as long as the process should: Linux ends the process with that thread.
        """
        ours, theirs = socket.socketpair()
        try:
            popen = subprocess.Popen(
                [sys.executable, "-m", "pellucid", subcommand, "--fd", str(theirs.fileno()), *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return popen, ours

    async def connect(self, on_messages: Callable[[Iterable[Received]], None]) -> None:
        self._on_messages = on_messages
        self._sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=self._sock)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # a cast, not a check: uvloop's transports write, but are no subclass of asyncio's
        self._transport = cast(asyncio.WriteTransport, transport)
        for message in self._backlog:
            self.send(message)
        self._backlog.clear()

    def data_received(self, data: bytes) -> None:
        assert self._on_messages is not None
        try:
            self._on_messages(self._reader.feed(data))
        except WireError as error:
            self.error = str(error)
            self.kill()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()

    @property
    def is_gone(self) -> bool:
        return self._gone.is_set()

    async def wait_gone(self, timeout_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._gone.wait(), timeout_s)

    def send(self, message: msgspec.Struct) -> None:
        """Never blocks; what the child does not take waits in this process."""
        if self._transport is None:
            self._backlog.append(message)
        elif not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    def kill(self) -> None:
        """kill -9. What it had already said is still read, up to the end of the line."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.kill()

    async def reap(self) -> str:
        """Wait for the end of the process, after the line is closed; returns how it ended, in words."""
        try:
            code = await asyncio.to_thread(self._popen.wait, 2.0)
        except subprocess.TimeoutExpired:
            self._popen.kill()  # it closed the line but stays: a process that answers nobody
            code = await asyncio.to_thread(self._popen.wait)
        if code >= 0:
            return f"ended with exit code {code}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return f"was killed by {name}{hint}"
        return f"was killed by signal {-code}"


def _import_path() -> list[str]:
    """This process's own, so that the child runs the same code and finds an operator's logits processors."""
    package_parent = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return list(dict.fromkeys([package_parent, *(os.path.abspath(p) for p in sys.path)]))
