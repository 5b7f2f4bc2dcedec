"""`--trace FILE`: the events as a file that Perfetto opens, written as they come and whole at any moment.

The JSON array form of the trace-event format may lack its closing bracket, so that a trace that was cut off by
`kill -9` opens all the same. Each trace event is a line of its own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from pellucid.observability.events import Event
from pellucid.observability.trace_events import TraceEvent, TraceEvents, events_in

logger = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 1 << 30
FLUSH_BYTES = 1 << 16
FLUSH_S = 0.5


class TraceFile:
    """Give it every event; what it holds back is written after half a second, and whenever the engine falls idle.

    No more than max_bytes are written: then it says so, in the file and in the log, and writes no more. Neither does it
    after an error of the disk; the server goes on. Raises OSError where the file can't be made.
    """

    def __init__(self, path: str | Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._fd: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._buffer = bytearray(b"[\n")
        self._last_flush = time.monotonic()
        self._events = TraceEvents(time.time())
        self._encode = msgspec.json.Encoder().encode_lines
        self._add(self._events.header())
        self.flush()

    def on_events(self, events: Sequence[Event], is_idle: bool = False) -> None:
        """is_idle: no more events are about to come."""
        if self._fd is None:
            return
        self._add(chain.from_iterable(map(self._events.convert, events)))
        now = time.monotonic()
        if is_idle or len(self._buffer) > FLUSH_BYTES or now - self._last_flush > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        self._last_flush = time.monotonic()
        if self._fd is None or not self._buffer:
            return
        if self._num_bytes + len(self._buffer) > self._max_bytes:
            self._finish(f"the trace has reached its {self._max_bytes} bytes")
            return
        self._write()

    def close(self) -> None:
        if self._fd is not None:
            self._write()
            self._finish("the end", warn=False)

    def _add(self, trace_events: Iterable[TraceEvent]) -> None:
        # JSON writes a line break within a string as an escape: this one ends an event.
        self._buffer += self._encode(trace_events).replace(b"}\n", b"},\n")

    def _finish(self, why: str, warn: bool = True) -> None:
        self._buffer[:] = self._encode([{"ph": "M", "name": why, "pid": 1, "tid": 0, "args": {"name": why}}]) + b"]\n"
        self._write()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if warn:
            logger.warning("%s: %s; nothing more is traced", self._path, why)

    def _write(self) -> None:
        if self._fd is None:
            return
        try:
            written = os.write(self._fd, self._buffer)
            while written < len(self._buffer):
                written += os.write(self._fd, memoryview(self._buffer)[written:])
        except OSError as error:
            logger.warning("%s cannot be written (%s); nothing more is traced", self._path, error)
            os.close(self._fd)
            self._fd = None
        self._num_bytes += len(self._buffer)
        self._buffer = bytearray()


def read_trace(path: str | Path) -> Iterator[Event]:
    """The bus events of a trace file, in the order in which they were told; a line that was cut off ends it.

    Raises OSError, and ValueError for a file that is no trace of ours.
    """
    with open(path, "rb") as lines:
        if lines.readline(16).strip() != b"[":
            raise ValueError(f"{path} is not a trace file as --trace writes it: it does not begin with '['")
        for line in lines:
            try:
                trace_event = msgspec.json.decode(line.rstrip().rstrip(b","))
            except msgspec.DecodeError:
                return
            if (event := events_in(trace_event)) is not None:
                yield event
