"""One engine process: its start, its end of the line, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import cast

from pellucid.config import EngineConfig
from pellucid.core.messages import Shutdown
from pellucid.engine.wire import Configure, FromEngine, ToEngine, WireError, encode_frame, front_end_side_reader

OnMessages = Callable[[Iterable[FromEngine]], None]


class EngineProcess(asyncio.Protocol):
    """Created by `spawn`, then `connect`; gone when the line is closed, from whichever side."""

    def __init__(self, popen: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.pid = popen.pid
        self.error: str | None = None  # what was wrong with what it sent
        self._popen = popen
        self._sock = sock
        self._reader = front_end_side_reader()
        self._gone = asyncio.Event()
        self._transport: asyncio.WriteTransport | None = None
        self._on_messages: OnMessages | None = None
        self._backlog: list[ToEngine] = []

    @classmethod
    def spawn(cls, config: EngineConfig, builder: str) -> EngineProcess:
        """Start the process; it begins to load at once. Raises OSError.

        Called on a thread that lives as long as the engine should: Linux ends the process with that thread.
        """
        ours, theirs = socket.socketpair()
        try:
            popen = subprocess.Popen(
                [sys.executable, "-m", "pellucid", "engine", "--fd", str(theirs.fileno()), "--builder", builder],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        process = cls(popen, ours)
        process._backlog.append(Configure(config=config))
        return process

    async def connect(self, on_messages: OnMessages) -> None:
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
            self.error = f"the engine process sent {error}"
            self.kill()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()

    @property
    def is_gone(self) -> bool:
        return self._gone.is_set()

    async def wait_gone(self, timeout_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._gone.wait(), timeout_s)

    def send(self, message: ToEngine) -> None:
        """Never blocks; what the engine does not take waits in this process."""
        if self._transport is None:
            self._backlog.append(message)
        elif not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    def ask_to_leave(self) -> None:
        self.send(Shutdown())

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
    """This process's own, so that the engine runs the same code and finds an operator's logits processors."""
    package_parent = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return list(dict.fromkeys([package_parent, *(os.path.abspath(p) for p in sys.path)]))
