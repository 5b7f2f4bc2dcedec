"""How a front end reaches an engine: one interface, in-process or across a process boundary."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pellucid.core.messages import ControlAction, EngineCoreOutput, EngineCoreRequest, EngineReady, SchedulerStats
from pellucid.observability.events import Event


class EngineState(enum.Enum):
    LOADING = "loading"
    READY = "ready"
    UNRESPONSIVE = "unresponsive"  # no heartbeat, or a step that does not end
    RESTARTING = "restarting"
    FAILED = "failed"  # could not start, and will not be tried again
    STOPPED = "stopped"


OutputSink = Callable[[EngineCoreOutput], None]  # called on the event loop's thread, in order


class EngineClient(ABC):
    """The caller keeps no engine state: a client that loses its engine brings it back and replays what was
    in flight."""

    state: EngineState
    progress: str  # while LOADING or RESTARTING, what is going on; while FAILED, the root cause
    ready: EngineReady | None
    stats: SchedulerStats
    on_events: Callable[[Sequence[Event], SchedulerStats], None] | None

    @abstractmethod
    async def start(self) -> None:
        """Begin loading; returns at once. Use wait_ready."""

    @abstractmethod
    async def wait_ready(self) -> EngineReady:
        """Raises RuntimeError with the root cause where the engine cannot start."""

    @abstractmethod
    def add(self, request: EngineCoreRequest, sink: OutputSink) -> None:
        """Submit; every later output of this request goes to `sink`, the last one with a finish_reason."""

    @abstractmethod
    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop these; a request that is already gone is no error. The sink is not called again."""

    @abstractmethod
    def watch(self, detail: bool) -> None:
        """Have `on_events` told every event, each time beginning with a snapshot; or only what is always told.

        Holds over engines: a new one is asked for the same.
        """

    @abstractmethod
    def control(self, action: ControlAction) -> None:
        """Pause the scheduler, make a single step, or go on; nothing where there is no engine."""

    @abstractmethod
    async def shutdown(self) -> None:
        """Stop the engine now (draining is the caller's affair) and leave no process behind."""
