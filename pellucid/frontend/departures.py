"""How fast requests have been leaving lately, and so when it is worth asking again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
WINDOW_S = 60.0
KEPT = 256  # of the last departures


class Departures:
    """Told of every engine request that ended, however it did: each made room for another."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._times: deque[float] = deque(maxlen=KEPT)

    def add(self, number: int) -> None:
        self._times.extend([self._monotonic()] * number)

    def retry_after_s(self, num_waiting: int) -> float:
        """When half of those who wait will have been served, at the pace of the last minute: then there is room for
        those who come again, and still work until they do. Between MIN_RETRY_S, also where nothing is known, and
        MAX_RETRY_S.
        """
        now, times = self._monotonic(), self._times
        while times and now - times[0] > WINDOW_S:
            times.popleft()
        if not times:
            return MIN_RETRY_S
        rate = len(times) / max(now - times[0], 1.0)  # per second; a single one a moment ago says little
        return min(max(num_waiting / 2 / rate, MIN_RETRY_S), MAX_RETRY_S)
