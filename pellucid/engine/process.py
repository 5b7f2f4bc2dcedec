"""The engine process: `pellucid engine --fd N`, started by a front end and alive only as long as that.

Two threads. The main one builds the engine and then makes steps. The I/O thread reads the socket into the loop's inbox
and sends a heartbeat five times a second, so that the front end can tell a long step from a dead process. The process
ends with its front end: end of file on the socket ends it at once, whatever the main thread is doing.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import queue
import select
import socket
import sys
import threading
import time
from typing import Any, NoReturn

from pellucid.core.messages import (
    EngineFailed,
    EngineHeartbeat,
    EngineInput,
    EngineLoading,
    Shutdown,
)
from pellucid.engine.become import become, inherited_line
from pellucid.engine.loop import DEFAULT_BUILDER, EngineLoop, describe_error, load_builder
from pellucid.engine.wire import Configure, FromEngine, WireError, encode_frame, engine_side_reader
from pellucid.observability.event_log import set_log_level

HEARTBEAT_INTERVAL_S = 0.2

logger = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    args = _parse(argv)
    logging.basicConfig(format="%(levelname)s engine: %(message)s")
    become("pellucid engine")
    line = FrontEndLine(inherited_line(args.fd))
    line.start()
    try:
        _run(line, args.builder)
        code = 0
    except Exception as error:
        if not isinstance(error, ValueError | OSError):
            logger.exception("the engine process fails")
        with contextlib.suppress(OSError):
            line.send(EngineFailed(error=describe_error(error)))
        code = 1
    _exit(code)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pellucid engine", description="The engine process of a front end.")
    parser.add_argument("--fd", type=int, required=True, help="the socket inherited from the front end")
    parser.add_argument(
        "--builder",
        default=DEFAULT_BUILDER,
        metavar="MODULE:FUNCTION",
        help="what builds the engine core from (config, on_progress); an embedder or a test may bring its own",
    )
    return parser.parse_args(argv)


def _run(line: FrontEndLine, builder_name: str) -> None:
    first = line.inbox.get()
    if isinstance(first, Shutdown):
        return
    if not isinstance(first, Configure):
        raise WireError(f"the first message must be Configure, not {type(first).__name__}")
    line.send(EngineLoading(stage="importing", fraction=0.0))
    set_log_level(first.config.log_level)
    build = load_builder(builder_name)
    core, ready = build(first.config, line.send)
    loop = EngineLoop(core, line.send)
    line.hand_over_to(loop)
    line.send(ready)
    loop.run()


class FrontEndLine:
    """The engine's end of the socket pair: messages out from any thread, messages in on the I/O thread.

    Before there is a loop, what comes in waits in `inbox`; afterwards it goes to the loop's.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sock = sock
        self._send_lock = threading.Lock()
        self._hand_over_lock = threading.Lock()
        self._loop: EngineLoop | None = None

    def start(self) -> None:
        threading.Thread(target=self._supervised, name="pellucid-io", daemon=True).start()

    def send(self, message: FromEngine) -> None:
        """Blocks while the front end does not read: there is no use in getting ahead of it."""
        frame = encode_frame(message)
        with self._send_lock:
            self._sock.sendall(frame)

    def hand_over_to(self, loop: EngineLoop) -> None:
        with self._hand_over_lock:  # no message may fall in between or change its place
            while not self.inbox.empty():
                loop.inbox.put(self.inbox.get())
            self._loop = loop

    def _supervised(self) -> None:
        try:
            self._serve()
        except OSError:
            _exit(0)  # the front end is gone
        except BaseException:
            logger.exception("the engine's I/O thread fails")
            _exit(1)

    def _serve(self) -> None:
        reader = engine_side_reader()
        readable = select.poll()  # not select.select: our descriptor may be a large number
        readable.register(self._sock, select.POLLIN)
        next_heartbeat = time.monotonic()
        while True:
            wait = next_heartbeat - time.monotonic()
            if wait <= 0:
                self._heartbeat()
                next_heartbeat = time.monotonic() + HEARTBEAT_INTERVAL_S
                continue
            if not readable.poll(wait * 1000):
                continue
            data = self._sock.recv(1 << 18)
            if not data:
                _exit(0)  # end of file: the front end is gone
            for message in reader.feed(data):
                self._receive(message)

    def _receive(self, message: EngineInput | Configure) -> None:
        with self._hand_over_lock:
            if self._loop is None:
                self.inbox.put(message)
            elif isinstance(message, Configure):
                raise WireError("a second Configure")
            else:
                self._loop.inbox.put(message)

    def _heartbeat(self) -> None:
        # While a message is being sent the line is visibly alive, and waiting here would leave the socket unread.
        if not self._send_lock.acquire(blocking=False):
            return
        try:
            loop = self._loop
            heartbeat = (
                EngineHeartbeat(step=0, step_running_s=0.0)
                if loop is None
                else EngineHeartbeat(step=loop.num_steps, step_running_s=loop.step_running_s)
            )
            self._sock.sendall(encode_frame(heartbeat))
        finally:
            self._send_lock.release()


def _exit(code: int) -> NoReturn:
    """Leave without the interpreter's own shutdown, which waits for threads that may be stuck in a kernel."""
    with contextlib.suppress(Exception):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
