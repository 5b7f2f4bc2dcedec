"""The rules of supervision, without the processes: when an engine counts as silent, hung or crash-looping."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from pellucid.core.messages import SchedulerStats


@dataclass(frozen=True)
class SupervisionPolicy:
    """Times in seconds."""

    silence_s: float = 0.7  # without a heartbeat (five a second): no engine answers, and /health says so
    hang_s: float = 10.0  # silent for so long: killed and started again
    loading_hang_s: float = 120.0  # the same while it loads, when imports and compilers hold everything up
    slow_step_s: float = 30.0  # a step that has been running for so long: no engine answers
    stuck_step_s: float = 300.0  # and for so long: killed and started again
    max_deaths: int = 5  # one after another without progress: given up
    first_backoff_s: float = 0.0
    backoff_s: float = 0.5  # of the second restart, doubled with each one further
    max_backoff_s: float = 15.0
    stable_s: float = 60.0  # being ready for so long is progress too
    suspect_after: int = 2  # deaths after which a request is suspected of being the cause
    max_deaths_of_a_request: int = 3
    shutdown_s: float = 3.0  # from Shutdown to kill -9
    tick_s: float = 0.1


class Watchdog:
    """Counts how long an engine has been silent, in its own ticks.

    Not by the clock alone: where this process itself was held up (a stopped laptop, a long garbage collection), the
    engine's messages wait unread in the socket, and a silence that nobody listened to is none.
    """

    def __init__(self, policy: SupervisionPolicy, now: Callable[[], float] = time.monotonic) -> None:
        self.step_running_s = 0.0  # as the last heartbeat said
        self._policy = policy
        self._now = now
        self._last_tick = now()
        self._silent_s = 0.0
        self._is_loading = True

    def heard(self) -> None:
        self._silent_s = 0.0

    def tick(self, is_loading: bool) -> None:
        now = self._now()
        self._silent_s += min(now - self._last_tick, 2 * self._policy.tick_s)
        self._last_tick = now
        self._is_loading = is_loading

    @property
    def is_responsive(self) -> bool:
        return self._silent_s < self._policy.silence_s and self.step_running_s < self._policy.slow_step_s

    @property
    def reason_to_kill(self) -> str | None:
        limit = self._policy.loading_hang_s if self._is_loading else self._policy.hang_s
        if self._silent_s >= limit:
            return f"the engine process gave no sign of life for {self._silent_s:.0f} s"
        if self.step_running_s >= self._policy.stuck_step_s:
            return f"a step of the engine did not end within {self.step_running_s:.0f} s"
        return None


@dataclass(frozen=True)
class Verdict:
    """delay_s: start again after this; None: give up, and message says why."""

    delay_s: float | None
    message: str


class CrashLoop:
    """Counts deaths without progress. Progress is a token, a request found guilty, or having been ready for a while."""

    def __init__(self, policy: SupervisionPolicy, now: Callable[[], float] = time.monotonic) -> None:
        self.num_deaths = 0
        self._policy = policy
        self._now = now
        self._ready_at: float | None = None

    def became_ready(self) -> None:
        self._ready_at = self._now()

    def progressed(self) -> None:
        self.num_deaths = 0

    def died(self, cause: str) -> Verdict:
        if self._ready_at is not None and self._now() - self._ready_at >= self._policy.stable_s:
            self.num_deaths = 0
        self._ready_at = None
        self.num_deaths += 1
        if self.num_deaths >= self._policy.max_deaths:
            return Verdict(None, f"the engine died {self.num_deaths} times in a row; the last time: {cause}")
        if self.num_deaths == 1:
            return Verdict(self._policy.first_backoff_s, cause)
        delay = self._policy.backoff_s * 2 ** (self.num_deaths - 2)
        return Verdict(min(delay, self._policy.max_backoff_s), cause)


def counters_of(stats: SchedulerStats) -> SchedulerStats:
    """Only what counts "since start"; every gauge is zero, as there is no engine."""
    return SchedulerStats(
        num_preemptions=stats.num_preemptions,
        num_forced_tokens=stats.num_forced_tokens,
        prefix_cache_queries=stats.prefix_cache_queries,
        prefix_cache_hits=stats.prefix_cache_hits,
    )


def add_counters(stats: SchedulerStats, base: SchedulerStats) -> SchedulerStats:
    """`stats` with the counters of earlier engines added, so that they do not fall at a restart."""
    return msgspec.structs.replace(
        stats,
        num_preemptions=stats.num_preemptions + base.num_preemptions,
        num_forced_tokens=stats.num_forced_tokens + base.num_forced_tokens,
        prefix_cache_queries=stats.prefix_cache_queries + base.prefix_cache_queries,
        prefix_cache_hits=stats.prefix_cache_hits + base.prefix_cache_hits,
    )
