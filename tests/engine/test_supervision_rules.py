"""The rules of supervision by a clock of our own: silence, hangs, crash loops, suspects."""

from __future__ import annotations

import random

from pellucid.core.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, SchedulerStats
from pellucid.engine.in_flight import InFlightRequests
from pellucid.engine.supervision import CrashLoop, SupervisionPolicy, Watchdog, add_counters, counters_of
from pellucid.sampling.params import SamplingParams

POLICY = SupervisionPolicy()


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def tick_for(watchdog: Watchdog, clock: Clock, seconds: float, is_loading: bool = False) -> None:
    for _ in range(round(seconds / POLICY.tick_s)):
        clock.time += POLICY.tick_s
        watchdog.tick(is_loading)


def test_an_engine_is_silent_within_a_second_and_hung_later() -> None:
    clock = Clock()
    watchdog = Watchdog(POLICY, clock)
    tick_for(watchdog, clock, 0.5)
    assert watchdog.is_responsive
    tick_for(watchdog, clock, 0.4)
    assert not watchdog.is_responsive
    assert watchdog.reason_to_kill is None
    watchdog.heard()
    assert watchdog.is_responsive
    tick_for(watchdog, clock, POLICY.hang_s + 0.2)
    assert "no sign of life" in (watchdog.reason_to_kill or "")


def test_a_silence_that_nobody_listened_to_is_none() -> None:
    clock = Clock()
    watchdog = Watchdog(POLICY, clock)
    clock.time += 3600  # this process was stopped; what the engine said waits unread
    watchdog.tick(is_loading=False)
    assert watchdog.is_responsive
    assert watchdog.reason_to_kill is None


def test_loading_may_be_silent_for_longer() -> None:
    clock = Clock()
    watchdog = Watchdog(POLICY, clock)
    tick_for(watchdog, clock, POLICY.hang_s + 1, is_loading=True)
    assert watchdog.reason_to_kill is None
    tick_for(watchdog, clock, POLICY.loading_hang_s, is_loading=True)
    assert watchdog.reason_to_kill is not None


def test_a_long_step_is_unresponsive_and_an_endless_one_is_killed() -> None:
    watchdog = Watchdog(POLICY, Clock())
    watchdog.step_running_s = POLICY.slow_step_s
    assert not watchdog.is_responsive
    assert watchdog.reason_to_kill is None
    watchdog.step_running_s = POLICY.stuck_step_s
    assert "did not end" in (watchdog.reason_to_kill or "")


def test_restarts_slow_down_and_end() -> None:
    loop = CrashLoop(POLICY, Clock())
    verdicts = [loop.died("boom") for _ in range(POLICY.max_deaths)]
    assert [v.delay_s for v in verdicts] == [0.0, 0.5, 1.0, 2.0, None]
    assert verdicts[-1].message == "the engine died 5 times in a row; the last time: boom"


def test_progress_starts_the_count_anew() -> None:
    clock = Clock()
    loop = CrashLoop(POLICY, clock)
    for _ in range(3):
        loop.died("boom")
    loop.progressed()
    assert loop.died("boom").delay_s == 0.0
    loop.died("boom")
    loop.became_ready()
    clock.time += POLICY.stable_s
    assert loop.died("boom").delay_s == 0.0


def test_counters_add_up_and_gauges_do_not() -> None:
    counted = {"num_preemptions": 2, "num_forced_tokens": 7, "prefix_cache_queries": 100, "prefix_cache_hits": 40}
    old = SchedulerStats(step=9, num_running=3, **counted)
    new = SchedulerStats(
        step=1, num_running=1, num_preemptions=1, num_forced_tokens=2, prefix_cache_queries=10, prefix_cache_hits=4
    )
    both = add_counters(new, counters_of(old))
    assert both == SchedulerStats(
        step=1, num_running=1, num_preemptions=3, num_forced_tokens=9, prefix_cache_queries=110, prefix_cache_hits=44
    )


def simulate(seed: int) -> None:
    """Random engines that die in the middle of random requests, some of which are deadly each time."""
    rng = random.Random(seed)
    requests = InFlightRequests()
    num_requests = rng.randint(1, 8)
    deadly = {f"r{i}" for i in range(num_requests) if rng.random() < 0.3}
    length = 6
    received: dict[str, list[int]] = {f"r{i}": [] for i in range(num_requests)}
    ends: dict[str, EngineCoreOutput] = {}

    def sink(output: EngineCoreOutput) -> None:
        assert output.request_id not in ends, "an output after the last one"
        received[output.request_id] += output.new_token_ids
        if output.finish_reason is not None:
            ends[output.request_id] = output

    for i in range(num_requests):
        value = EngineCoreRequest(
            request_id=f"r{i}", prompt_token_ids=[i], sampling_params=SamplingParams(max_tokens=length)
        )
        requests.add(value, sink)
    for _ in range(200):
        engine: dict[str, list[int]] = {}
        dead = False
        while not dead and len(requests):
            for value in requests.sendable():
                assert value.request_id not in engine
                engine[value.request_id] = list(value.output_token_ids)
            assert engine, "nothing is sent although requests are in flight"
            if deadly & engine.keys() or rng.random() < 0.02:
                for call in requests.engine_died("boom"):
                    call()
                dead = True
                continue
            for request_id in list(engine):
                token = len(engine[request_id])
                engine[request_id].append(token)
                finished = len(engine[request_id]) == length
                call = requests.deliver(
                    EngineCoreOutput(
                        request_id=request_id,
                        new_token_ids=[token],
                        finish_reason=FinishReason.LENGTH if finished else None,
                    )
                )
                assert call is not None
                call()
                if finished:
                    del engine[request_id]
        if not len(requests):
            break
    assert ends.keys() == received.keys(), "a request that never ended"
    for request_id, tokens in received.items():
        if request_id in deadly:
            assert ends[request_id].finish_reason is FinishReason.ERROR
        elif ends[request_id].finish_reason is not FinishReason.ERROR:
            assert tokens == list(range(length))
    innocent_errors = [r for r, end in ends.items() if end.finish_reason is FinishReason.ERROR and r not in deadly]
    # only a chance death for the third time without a token, and alone, can do that
    assert len(innocent_errors) <= 1


def test_whatever_dies_every_request_ends_whole_or_guilty() -> None:
    for seed in range(300):
        simulate(seed)
