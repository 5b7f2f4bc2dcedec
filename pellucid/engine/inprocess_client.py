"""The engine on a thread of the caller's process: the same loop, the same interface, no process to supervise."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence

from pellucid.config import EngineConfig
from pellucid.core.messages import (
    AbortRequests,
    Control,
    ControlAction,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineInput,
    EngineLoading,
    Shutdown,
    Watch,
)
from pellucid.engine.client import EngineState, OutputSink
from pellucid.engine.dispatch import DispatchingClient
from pellucid.engine.in_flight import InFlightRequests
from pellucid.engine.loop import DEFAULT_BUILDER, Builder, EngineLoop, describe_error, load_builder
from pellucid.observability.events import EngineStarted

logger = logging.getLogger(__name__)


class InProcessEngineClient(DispatchingClient):
    """builder: what builds the engine core, as build_engine_core does (and by default is).

    A step that raises ends the requests in flight with an error, and the engine goes on. Nothing here is ever
    UNRESPONSIVE: a thread cannot be killed, and who shares our process sees it hang without being told.
    """

    def __init__(self, config: EngineConfig, *, builder: Builder | None = None) -> None:
        super().__init__(InFlightRequests(), "loading the engine")
        self._config = config
        self._builder = builder
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._step_loop: EngineLoop | None = None
        self._stopping = False
        self._watches_detail = False

    def _begin(self) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="pellucid-engine", daemon=True)
        self._thread.start()

    def add(self, request: EngineCoreRequest, sink: OutputSink) -> None:
        """Raises RuntimeError where there is no engine and will be none, ValueError where the id is in use."""
        if self.state in (EngineState.FAILED, EngineState.STOPPED):
            raise RuntimeError(self.progress)
        self._in_flight.add(request, sink)
        self._send_sendable()

    def abort(self, request_ids: Sequence[str]) -> None:
        if known := self._in_flight.remove(request_ids):
            self._put(AbortRequests(request_ids=known))

    def watch(self, detail: bool) -> None:
        self._watches_detail = detail
        self._put(Watch(detail=detail))

    def control(self, action: ControlAction) -> None:
        self._put(Control(action=action))

    async def shutdown(self) -> None:
        self._stopping = True
        self._put(Shutdown())
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._stopped()

    def _put(self, message: EngineInput) -> None:
        if self._step_loop is not None:
            self._step_loop.inbox.put(message)

    def _send_sendable(self) -> None:
        if self.state is EngineState.READY:
            for request in self._in_flight.sendable():
                self._put(request)

    # on the engine's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        begun = time.monotonic()
        try:
            build = self._builder or load_builder(DEFAULT_BUILDER)  # this imports torch
            core, ready = build(self._config, self._on_progress)
        except Exception as error:
            cause = describe_error(error)
            self._call_soon(lambda: self._fail(cause))
            return
        step_loop = EngineLoop(core, self._publish)

        def take_over() -> None:
            self._step_loop = step_loop
            if self._stopping:
                step_loop.inbox.put(Shutdown())
            self._became_ready(ready)
            self._tell([EngineStarted(time=time.time(), num_restarts=0, load_s=time.monotonic() - begun)])
            if self._watches_detail:
                self.watch(True)
            self._send_sendable()

        self._call_soon(take_over)
        while True:
            try:
                step_loop.run()
                return
            except Exception as error:
                logger.exception("a step of the engine fails")
                self._end_all(step_loop, f"a step of the engine failed: {describe_error(error)}")

    def _end_all(self, step_loop: EngineLoop, cause: str) -> None:
        """It cannot be told who caused it: all that is in flight ends, and the engine goes on without it."""
        done = threading.Event()

        def end() -> None:
            step_loop.inbox.put(AbortRequests(request_ids=self._in_flight.ids()))
            self._pass_on(self._in_flight.fail_all(cause))
            done.set()

        if self._call_soon(end):
            done.wait()

    def _on_progress(self, loading: EngineLoading) -> None:
        self._call_soon(lambda: setattr(self, "progress", loading.stage))

    def _publish(self, message: EngineCoreOutputs) -> None:
        self._call_soon(lambda: self._dispatch(message, message.stats))

    def _call_soon(self, call: Callable[[], object]) -> bool:
        """On the event loop's thread; False where that loop is closed and nobody is left to hear."""
        assert self._event_loop is not None
        try:
            self._event_loop.call_soon_threadsafe(call)
        except RuntimeError:
            return False
        return True
