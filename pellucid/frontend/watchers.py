"""Who reads along with the engine's events. What costs something is sent only while somebody watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

from pellucid.core.messages import SchedulerStats
from pellucid.engine.client import EngineClient
from pellucid.observability.events import EngineSnapshot, Event

EventListener = Callable[[Sequence[Event], SchedulerStats], None]


class Watchers:
    """listeners hear what is always told: a few events per request, two per step. Watchers hear everything, and each
    begins with an EngineSnapshot (so that those who watch already get another one).
    """

    def __init__(self, client: EngineClient) -> None:
        self.listeners: list[EventListener] = []  # called with every step's events, before its outputs
        self._client = client
        self._num_watchers = 0

    def tell(self, events: Sequence[Event], stats: SchedulerStats) -> None:
        for listener in list(self.listeners):
            listener(events, stats)

    @contextlib.contextmanager
    def watch(self, listener: EventListener) -> Iterator[None]:
        self.listeners.append(listener)
        self._num_watchers += 1
        self._client.watch(True)
        try:
            yield
        finally:
            self.listeners.remove(listener)
            self._num_watchers -= 1
            if not self._num_watchers:
                self._client.watch(False)

    async def snapshot(self, timeout_s: float) -> EngineSnapshot:
        """The engine as it stands after the step in progress. Raises TimeoutError where it does not answer."""
        found: asyncio.Future[EngineSnapshot] = asyncio.get_running_loop().create_future()

        def look(events: Sequence[Event], stats: SchedulerStats) -> None:
            for event in events:
                if isinstance(event, EngineSnapshot) and not found.done():
                    found.set_result(event)

        with self.watch(look):
            return await asyncio.wait_for(found, timeout_s)
