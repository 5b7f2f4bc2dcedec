"""What both engine clients share: states, waiting for readiness, and the way of outputs to their readers."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence

from pellucid.core.messages import EngineCoreOutputs, EngineReady, SchedulerStats
from pellucid.engine.client import EngineClient, EngineState
from pellucid.engine.in_flight import InFlightRequests
from pellucid.observability.events import Event

logger = logging.getLogger(__name__)


class DispatchingClient(EngineClient):
    """On the event loop's thread. A subclass brings the engine, and calls `_became_ready`, `_dispatch`, `_fail`."""

    def __init__(self, in_flight: InFlightRequests, progress: str) -> None:
        self.state = EngineState.LOADING
        self.progress = progress
        self.ready: EngineReady | None = None
        self.stats = SchedulerStats()
        self.on_events = None
        self._in_flight = in_flight
        self._settled: asyncio.Future[None] | None = None  # done when first ready, failed or stopped

    async def start(self) -> None:
        if self._settled is None:
            self._settled = asyncio.get_running_loop().create_future()
            self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Start the engine; called once, on the event loop."""

    async def wait_ready(self) -> EngineReady:
        await self.start()
        assert self._settled is not None
        await asyncio.shield(self._settled)
        if self.ready is None or self.state in (EngineState.FAILED, EngineState.STOPPED):
            raise RuntimeError(self.progress)
        return self.ready

    def _enter(self, state: EngineState, progress: str) -> None:
        self.state = state
        self.progress = progress

    def _became_ready(self, ready: EngineReady) -> None:
        self.ready = ready
        self._enter(EngineState.READY, "")
        self._settle()

    def _fail(self, cause: str) -> None:
        self._enter(EngineState.FAILED, cause)
        self._pass_on(self._in_flight.fail_all(cause))
        self._settle()

    def _stopped(self) -> None:
        if self.state is not EngineState.FAILED:
            self._enter(EngineState.STOPPED, "the engine was shut down")
        self._pass_on(self._in_flight.fail_all("the engine was shut down"))
        self._settle()

    def _settle(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _dispatch(self, message: EngineCoreOutputs, stats: SchedulerStats) -> bool:
        """Statistics and events first, so that a reader of the last output finds both up to date.

        Returns whether a request that is still wanted got a token.
        """
        self.stats = stats
        self._tell(message.events)
        calls = []
        has_tokens = False
        for output in message.outputs:
            call = self._in_flight.deliver(output)
            if call is not None:
                calls.append(call)
                has_tokens = has_tokens or bool(output.new_token_ids)
        self._pass_on(calls)
        return has_tokens

    def _tell(self, events: Sequence[Event]) -> None:
        on_events, stats = self.on_events, self.stats
        if on_events is not None:
            self._pass_on([lambda: on_events(events, stats)])

    def _pass_on(self, calls: Iterable[Callable[[], None]]) -> None:
        for call in calls:
            try:
                call()
            except Exception:  # a reader's mistake is no reason to lose the engine
                logger.exception("a callback of the engine client fails")
