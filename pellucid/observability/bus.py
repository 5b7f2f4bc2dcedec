"""The event bus: the engine publishes what it decides, anybody may read along."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from pellucid.observability.events import (
    BlockEvicted,
    EngineSnapshot,
    Event,
    PrefixHit,
    RequestArrived,
    RequestFinished,
    RequestHeldBack,
    RequestPreempted,
    RequestRefused,
    RequestScheduled,
    SchedulingPaused,
    StepCompleted,
    StepStarted,
)

logger = logging.getLogger(__name__)

# What a request's story needs: a few per request, two per step. The others, per token and per block, are for watchers.
ALWAYS_PUBLISHED: frozenset[type] = frozenset(
    {
        RequestArrived,
        RequestRefused,
        RequestHeldBack,
        PrefixHit,
        RequestScheduled,
        RequestPreempted,
        RequestFinished,
        StepStarted,
        StepCompleted,
        BlockEvicted,
        SchedulingPaused,
        EngineSnapshot,
    }
)

Subscriber = Callable[[Event], None]


class EventBus:
    """Events go to a ring buffer of the last `capacity` and, at once and in the publisher's thread, to subscribers.

    A publisher asks `wants(kind)` before it makes an event of a kind that is not among ALWAYS_PUBLISHED. One thread
    publishes; any thread may subscribe or read.
    now: the clock of the events' `time`.
    """

    def __init__(
        self,
        capacity: int = 4096,
        now: Callable[[], float] = time.time,
        record: Iterable[type] = ALWAYS_PUBLISHED,
    ) -> None:
        self.now = now
        self.num_published = 0
        self._recorded = frozenset(record) | ALWAYS_PUBLISHED
        self._ring: deque[Event] = deque(maxlen=capacity)
        self._subscribers: dict[Subscriber, frozenset[type] | None] = {}
        self._listeners: dict[type, tuple[Subscriber, ...]] = {}  # replaced, never changed: read without a lock
        self._hear_all: tuple[Subscriber, ...] = ()
        self._wanted = self._recorded

    def wants(self, kind: type) -> bool:
        """Is there any reader for events of this kind?"""
        return bool(self._hear_all) or kind in self._wanted

    def publish(self, event: Event) -> None:
        self.num_published += 1
        self._ring.append(event)
        for subscriber in self._listeners.get(type(event), self._hear_all):
            try:
                subscriber(event)
            except Exception:
                logger.exception("a subscriber of the event bus failed and hears no more events")
                self.unsubscribe(subscriber)

    def subscribe(self, subscriber: Subscriber, kinds: Iterable[type] | None = None) -> None:
        """Call `subscriber` with every event of these kinds (None: of all). It must be quick and must not block."""
        self._subscribers[subscriber] = None if kinds is None else frozenset(kinds)
        self._rebuild()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.pop(subscriber, None)
        self._rebuild()

    def recent(self) -> list[Event]:
        """The last events, oldest first."""
        return list(self._ring)

    def _rebuild(self) -> None:
        subscribers = list(self._subscribers.items())
        kinds = frozenset().union(*(wanted for _, wanted in subscribers if wanted is not None))
        self._listeners = {
            kind: tuple(subscriber for subscriber, wanted in subscribers if wanted is None or kind in wanted)
            for kind in kinds
        }
        self._hear_all = tuple(subscriber for subscriber, wanted in subscribers if wanted is None)
        self._wanted = self._recorded | kinds
