"""The last events, kept for those who ask later: what `explain` reads on a running server."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from pellucid.observability.bus import ALWAYS_PUBLISHED
from pellucid.observability.events import (
    BlockEvicted,
    EngineDied,
    EngineSnapshot,
    EngineStarted,
    Event,
    RequestReplayed,
    RequestSubmitted,
    StepCompleted,
    StepStarted,
)

_KEPT = (ALWAYS_PUBLISHED - {EngineSnapshot}) | {EngineStarted, EngineDied, RequestReplayed, RequestSubmitted}


class History:
    """Ring buffers, so that many of one kind do not push out the others. A listener that only appends."""

    def __init__(self, num_steps: int = 4096, num_decisions: int = 16384, num_evictions: int = 4096) -> None:
        steps: deque[Any] = deque(maxlen=2 * num_steps)
        evictions: deque[Any] = deque(maxlen=num_evictions)
        decisions: deque[Any] = deque(maxlen=num_decisions)
        own: dict[type, deque[Any]] = {StepStarted: steps, StepCompleted: steps, BlockEvicted: evictions}
        self._ring_of: dict[type, deque[Any]] = {kind: own.get(kind, decisions) for kind in _KEPT}
        self._rings = (steps, evictions, decisions)

    def on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            ring = self._ring_of.get(type(event))
            if ring is not None:
                ring.append(event)

    def events(self) -> list[Event]:
        """By time. Of equal times those of a request come before those of a step: that is how they are told."""
        return sorted((event for ring in reversed(self._rings) for event in ring), key=lambda event: event.time)
