"""When it is worth asking again: by the length of the queue and the pace at which it moves."""

from __future__ import annotations

from pellucid.frontend.departures import MAX_RETRY_S, MIN_RETRY_S, Departures


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def departures(*times: float) -> tuple[Departures, Clock]:
    clock = Clock()
    found = Departures(clock)
    for time_s in times:
        clock.time = 100.0 + time_s
        found.add(1)
    return found, clock


def test_where_nothing_is_known_it_is_a_second() -> None:
    assert departures()[0].retry_after_s(250) == MIN_RETRY_S


def test_a_longer_queue_and_a_slower_pace_take_longer() -> None:
    quick, clock = departures(*(i / 4 for i in range(40)))  # four a second
    clock.time = 110.0
    assert quick.retry_after_s(256) == 32.0
    assert quick.retry_after_s(64) == 8.0
    assert quick.retry_after_s(1) == MIN_RETRY_S
    slow, clock = departures(*range(0, 50, 10))  # one in ten seconds
    clock.time = 150.0
    assert slow.retry_after_s(6) == 30.0
    assert slow.retry_after_s(256) == MAX_RETRY_S


def test_what_is_over_a_minute_old_is_not_heeded_and_a_standstill_shows() -> None:
    found, clock = departures(*(i / 4 for i in range(40)))
    clock.time = 150.0
    assert found.retry_after_s(32) == 16 / (40 / 50)
    clock.time = 171.0
    assert found.retry_after_s(32) == MIN_RETRY_S


def test_a_single_one_a_moment_ago_promises_little() -> None:
    found, _ = departures(0.0)
    assert found.retry_after_s(20) == 10.0
