"""The engine in a process of its own: started, watched, killed where it hangs, started again, and nothing lost.

Everything here runs on the caller's event loop; no thread, no lock. One task (`_supervise`) reads as the life of the
engine: start it, live with it, find out why it died, decide what follows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence

import msgspec

from pellucid.config import EngineConfig
from pellucid.core.messages import (
    AbortRequests,
    Control,
    ControlAction,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFailed,
    EngineHeartbeat,
    EngineLoading,
    EngineReady,
    SchedulerStats,
    Watch,
)
from pellucid.engine.client import EngineState, OutputSink
from pellucid.engine.dispatch import DispatchingClient
from pellucid.engine.in_flight import InFlightRequests
from pellucid.engine.loop import DEFAULT_BUILDER
from pellucid.engine.spawn import EngineProcess
from pellucid.engine.supervision import CrashLoop, SupervisionPolicy, Verdict, Watchdog, add_counters, counters_of
from pellucid.engine.wire import FromEngine
from pellucid.observability.events import EngineDied, EngineStarted, RequestReplayed

logger = logging.getLogger(__name__)


class SubprocessEngineClient(DispatchingClient):
    """builder: "package.module:function" that builds the engine core in the process, as build_engine_core does."""

    def __init__(
        self, config: EngineConfig, *, builder: str = DEFAULT_BUILDER, policy: SupervisionPolicy | None = None
    ) -> None:
        policy = policy or SupervisionPolicy()
        super().__init__(
            InFlightRequests(policy.suspect_after, policy.max_deaths_of_a_request), "starting the engine process"
        )
        self._config = config
        self._builder = builder
        self._policy = policy
        self._crash_loop = CrashLoop(policy)
        self._watchdog = Watchdog(policy)
        self._process: EngineProcess | None = None  # the one that lives now
        self._is_taking = False  # it has said that it is ready: requests may be sent
        self._last_words: str | None = None  # what a dying engine said of the cause
        self._earlier = SchedulerStats()  # counters of the engines that are gone
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._watches_detail = False
        self._num_restarts = 0
        self._spawned_at = 0.0  # time.monotonic()

    # the EngineClient interface --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._supervise(), name="engine-supervisor")

    def add(self, request: EngineCoreRequest, sink: OutputSink) -> None:
        """Raises RuntimeError where there is no engine and will be none, ValueError where the id is in use."""
        if self.state in (EngineState.FAILED, EngineState.STOPPED):
            raise RuntimeError(self.progress)
        self._in_flight.add(request, sink)
        self._send_sendable()

    def abort(self, request_ids: Sequence[str]) -> None:
        known = self._in_flight.remove(request_ids)
        if known and self._process is not None:
            self._process.send(AbortRequests(request_ids=known))
        self._send_sendable()  # a suspect that goes makes room for the next

    def watch(self, detail: bool) -> None:
        self._watches_detail = detail
        if self._process is not None and self._is_taking:
            self._process.send(Watch(detail=detail))

    def control(self, action: ControlAction) -> None:
        if self._process is not None and self._is_taking:
            self._process.send(Control(action=action))

    async def shutdown(self) -> None:
        self._stopping = True
        if self._process is not None:
            self._process.ask_to_leave()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._policy.shutdown_s)
            if self._process is not None:
                self._process.kill()
            await self._task
        self._stopped()

    @property
    def pid(self) -> int | None:
        """The process id of the engine that lives now."""
        return self._process.pid if self._process is not None else None

    # the life of the engine ------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        try:
            while not self._stopping:
                cause = await self._one_life()
                if self._stopping:
                    break
                verdict = self._after_death(cause)
                if verdict.delay_s is None:
                    break
                await self._pause(verdict.delay_s)
        except Exception as error:  # a supervisor that dies silently would leave every stream hanging
            logger.exception("the engine's supervisor fails")
            self._fail(f"the engine's supervisor failed: {type(error).__name__}: {error}")
        finally:
            if self._process is not None:
                self._process.kill()
                self._process = None

    async def _one_life(self) -> str:
        """From the start of a process to its end; returns the cause of death in one line."""
        self._last_words = None
        self._spawned_at = time.monotonic()
        self._watchdog = Watchdog(self._policy)
        try:
            process = EngineProcess.spawn(self._config, self._builder)
        except OSError as error:
            return f"the engine process cannot be started: {error}"
        self._process = process
        await process.connect(self._receive)
        kill_reason: str | None = None
        while not process.is_gone:
            await process.wait_gone(timeout_s=self._policy.tick_s)
            self._watchdog.tick(is_loading=not self._is_taking)
            self._show_health()
            if kill_reason is None and (kill_reason := self._watchdog.reason_to_kill) is not None:
                logger.error("killing the engine process: %s", kill_reason)
                process.kill()
        self._process = None
        self._is_taking = False
        self.stats = counters_of(self.stats)  # nothing runs where nothing is
        if not self._stopping:
            self._enter(self._state_between_lives, "the engine process is gone")
        how = await process.reap()
        if process.error is not None:
            how = f"sent {process.error}"
        return kill_reason or self._last_words or f"the engine process {how}"

    @property
    def _state_between_lives(self) -> EngineState:
        return EngineState.LOADING if self.ready is None else EngineState.RESTARTING

    def _after_death(self, cause: str) -> Verdict:
        """Account for a death, end what is guilty, and decide whether and when there is a next life."""
        self._earlier = counters_of(self.stats)
        self.stats = self._earlier
        self._num_restarts += 1
        self._tell([EngineDied(time=time.time(), reason=cause, num_in_flight=len(self._in_flight))])
        guilty = self._in_flight.engine_died(cause)
        if guilty:
            self._crash_loop.progressed()
        refused_to_start = self.ready is None and self._last_words is not None
        verdict = Verdict(None, cause) if refused_to_start else self._crash_loop.died(cause)
        if verdict.delay_s is None:
            self._fail(verdict.message)
        else:
            logger.error("%s; starting it again, %d requests in flight", cause, len(self._in_flight))
            self._enter(self._state_between_lives, f"restarting: {cause}")
        self._pass_on(guilty)
        return verdict

    async def _pause(self, delay_s: float) -> None:
        end = asyncio.get_running_loop().time() + delay_s
        while not self._stopping and (left := end - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left, self._policy.tick_s))

    # what the engine says --------------------------------------------------------------------------------------------

    def _receive(self, messages: Iterable[FromEngine]) -> None:
        for message in messages:
            self._watchdog.heard()
            if isinstance(message, EngineCoreOutputs):
                self._on_outputs(message)
            elif isinstance(message, EngineHeartbeat):
                self._watchdog.step_running_s = message.step_running_s
            elif isinstance(message, EngineReady):
                self._on_ready(message)
            elif isinstance(message, EngineLoading):
                self.progress = message.stage if self.ready is None else f"restarting: {message.stage}"
            elif isinstance(message, EngineFailed):
                self._last_words = message.error
        self._show_health()

    def _on_ready(self, ready: EngineReady) -> None:
        self._is_taking = True
        self._crash_loop.became_ready()
        # Requests were taken by the limits of the first life: a later one that had less memory keeps to them, or fails.
        self._config = msgspec.structs.replace(
            self._config, max_model_len=ready.max_model_len, num_kv_blocks=ready.num_blocks
        )
        self._became_ready(ready)
        load_s = time.monotonic() - self._spawned_at
        self._tell([EngineStarted(time=time.time(), num_restarts=self._num_restarts, load_s=load_s)])
        if self._watches_detail:
            self.watch(True)
        self._send_sendable()

    def _on_outputs(self, message: EngineCoreOutputs) -> None:
        self._watchdog.step_running_s = 0.0
        was_on_trial = self._in_flight.on_trial
        if self._dispatch(message, add_counters(message.stats, self._earlier)):
            self._crash_loop.progressed()
        if was_on_trial:
            self._send_sendable()

    def _send_sendable(self) -> None:
        if self._process is not None and self._is_taking:
            requests = self._in_flight.sendable()
            for request in requests:
                self._process.send(request)
            if replayed := [r for r in requests if self._in_flight.was_in_a_dead_engine(r.request_id)]:
                self._tell(
                    [
                        RequestReplayed(
                            request_id=r.request_id, time=time.time(), num_output_tokens=len(r.output_token_ids)
                        )
                        for r in replayed
                    ]
                )

    def _show_health(self) -> None:
        if self._is_taking:
            self.state = EngineState.READY if self._watchdog.is_responsive else EngineState.UNRESPONSIVE
