"""Tokens that a constraint forces: when they are computed, and where they end a request."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_engine import FakeEngine, assert_idle, continuation, make_request, prompt

from pellucid.core.request import Request
from pellucid.core.scheduler_output import RunnerOutput, SampledRequest


@pytest.mark.parametrize(
    ("params", "kept", "num_forced"),
    [
        ({}, [5, 6, 2], 2),  # EOS is 2
        ({"ignore_eos": True, "max_tokens": 4}, [5, 6, 2, 7], 3),
        ({"stop_token_ids": (5,)}, [5], 0),
        ({"max_tokens": 2}, [5, 6], 1),
        ({"min_tokens": 5, "max_tokens": 9}, [5, 6, 2, 7, 2], 4),
    ],
)
def test_forced_tokens_stop_at_the_first_ending_too(
    params: dict[str, object], kept: list[int], num_forced: int
) -> None:
    engine = FakeEngine()
    engine.scheduler.add_request(make_request("r", [1], eos_token_ids=(2,), **{"max_tokens": 6, **params}))
    scheduled = engine.scheduler.schedule()
    result = SampledRequest(token_ids=[5, 6, 2, 7, 2, 8], num_forced=5)
    (output,) = engine.scheduler.update_from_output(scheduled, RunnerOutput([result]))
    assert output.new_token_ids == kept
    assert output.finish_reason is not None
    assert engine.core.stats().num_forced_tokens == num_forced


def forced_after(request_id: str, num_forced: int) -> Callable[[Request, int], bool]:
    """That request gets so many tokens after each that it samples; the others none."""
    return lambda request, so_far: request.request_id == request_id and so_far <= num_forced


def test_forced_tokens_are_computed_in_one_step_with_the_token_before_them() -> None:
    engine = FakeEngine(is_forced=forced_after("r", 3), max_forced=3)
    request = make_request("r", prompt(0, 9), max_tokens=10)
    engine.add(request)
    engine.run()
    assert engine.runner.steps == [[("r", 0, 9)], [("r", 9, 4)], [("r", 13, 4)]]
    assert engine.tokens["r"] == continuation(request)
    assert [len(output.new_token_ids) for output in engine.all_outputs] == [4, 4, 2]
    assert engine.core.stats().num_forced_tokens == 7
    assert_idle(engine)


def test_a_long_prompt_in_front_does_not_hold_up_forced_tokens() -> None:
    engine = FakeEngine(is_forced=forced_after("stream", 2), max_forced=2, max_num_batched_tokens=8)
    engine.add(make_request("stream", prompt(0, 4), max_tokens=18))
    engine.step()
    engine.add(make_request("urgent", prompt(1, 40), max_tokens=2, priority=-1))
    engine.run()
    shares = [dict((name, num) for name, _, num in step) for step in engine.runner.steps]
    assert [step for step in shares if "urgent" in step][:5] == [{"stream": 3, "urgent": 5}] * 5
    assert_idle(engine)


def test_a_step_too_small_for_the_forced_tokens_computes_some_of_them() -> None:
    engine = FakeEngine(is_forced=forced_after("r", 5), max_forced=5, max_num_batched_tokens=4)
    request = make_request("r", prompt(0, 4), max_tokens=12)
    engine.add(request)
    engine.run()
    assert engine.runner.steps == [[("r", 0, 4)], [("r", 4, 4)], [("r", 8, 2)]]
    assert engine.tokens["r"] == continuation(request)
