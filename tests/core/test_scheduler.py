"""Who runs when: budget, order, preemption, admission, endings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_engine import FakeEngine, assert_idle, continuation, make_request, prompt

from pellucid.core.messages import EngineCoreRequest, FinishReason
from pellucid.core.request import Request, RequestStatus
from pellucid.core.scheduler import SchedulerConfig
from pellucid.core.scheduler_output import RunnerOutput, SampledRequest
from pellucid.observability.events import RequestHeldBack, RequestPreempted, RequestScheduled


def assert_right_tokens(engine: FakeEngine, requests: list[EngineCoreRequest]) -> None:
    for request in requests:
        assert engine.tokens[request.request_id] == continuation(request), request.request_id
    assert_idle(engine)


def running_ids(engine: FakeEngine) -> list[str]:
    return [request.request_id for request in engine.scheduler.running]


# the step ------------------------------------------------------------------------------------------------------------


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    engine = FakeEngine(max_num_batched_tokens=10)
    request = make_request("r", prompt(1, 35), max_tokens=3)
    engine.add(request)
    engine.run()
    shares = [step[0][1:] for step in engine.runner.steps]
    assert shares == [(0, 10), (10, 10), (20, 10), (30, 5), (35, 1), (36, 1)]
    assert_right_tokens(engine, [request])


def test_a_step_mixes_decodes_and_a_chunk_and_streams_go_on_beside_a_long_prompt() -> None:
    engine = FakeEngine(max_num_batched_tokens=8)
    short = [make_request(f"short{i}", prompt(i, 2), max_tokens=12) for i in range(2)]
    long = make_request("long", prompt(9, 40), max_tokens=2)
    engine.add(*short)
    engine.step()
    engine.add(long)
    engine.run()
    assert engine.runner.steps[1] == [("short0", 2, 1), ("short1", 2, 1), ("long", 0, 6)]
    assert engine.runner.steps[2] == [("short0", 3, 1), ("short1", 3, 1), ("long", 6, 6)]
    assert all(sum(num for *_, num in step) <= 8 for step in engine.runner.steps)
    assert_right_tokens(engine, [*short, long])


def test_an_urgent_long_prompt_does_not_stop_the_streams_of_others() -> None:
    engine = FakeEngine(max_num_batched_tokens=8)
    engine.add(make_request("stream", prompt(1, 2), max_tokens=30))
    engine.step()
    engine.add(make_request("urgent", prompt(2, 40), priority=-1))
    for _ in range(5):
        before = len(engine.tokens["stream"])
        engine.step()
        assert len(engine.tokens["stream"]) == before + 1


def test_max_num_seqs_bounds_the_batch_and_a_place_is_taken_in_the_next_step() -> None:
    engine = FakeEngine(max_num_seqs=2)
    requests = [make_request(f"r{i}", prompt(i, 3), max_tokens=2 + i) for i in range(4)]
    engine.add(*requests)
    engine.run()
    batches = [[share[0] for share in step] for step in engine.runner.steps]
    assert batches[:3] == [["r0", "r1"], ["r0", "r1"], ["r1", "r2"]]
    assert max(map(len, batches)) == 2
    assert_right_tokens(engine, requests)


def test_an_idle_step_is_not_counted() -> None:
    engine = FakeEngine()
    engine.step()
    engine.add(make_request("r", [1, 2], max_tokens=2))
    engine.run()
    engine.step()
    assert engine.core.stats().step == len(engine.runner.steps) == 2


def test_the_runner_hears_of_finished_requests_with_the_next_step() -> None:
    engine = FakeEngine()
    heard: list[list[str]] = []
    engine.runner.before_step = lambda scheduled: heard.append(list(scheduled.finished_request_ids))
    engine.add(make_request("a", [1], max_tokens=1), make_request("b", [2], max_tokens=3))
    engine.step()
    engine.core.abort_requests(["b"])
    engine.step()
    engine.add(make_request("c", [3], max_tokens=2))
    engine.run()
    assert heard == [[], ["a", "b"], []]


# order ---------------------------------------------------------------------------------------------------------------


def test_first_come_first_served_and_nobody_overtakes() -> None:
    engine = FakeEngine(num_blocks=10, max_num_seqs=4)
    big = make_request("big", prompt(2, 30), max_tokens=2)
    requests = [make_request("first", prompt(1, 10), max_tokens=6), big, make_request("small", prompt(3, 2))]
    engine.add(*requests)
    engine.step()
    assert running_ids(engine) == ["first"], "small would fit, but big was first"
    engine.run()
    admitted = [event.request_id for event in engine.events if isinstance(event, RequestScheduled)]
    assert admitted[:3] == ["first", "big", "small"]
    assert_right_tokens(engine, requests)


def test_lower_priority_numbers_go_first() -> None:
    engine = FakeEngine(max_num_seqs=1)
    priorities = {"p5": 5, "p0": 0, "p-3": -3, "p0 later": 0}
    requests = [make_request(name, prompt(i, 3), 2, priority=priorities[name]) for i, name in enumerate(priorities)]
    engine.add(*requests)
    engine.run()
    order = list(dict.fromkeys(share[0] for step in engine.runner.steps for share in step))
    assert order == ["p-3", "p0", "p0 later", "p5"]


def test_arrival_is_the_order_of_adding_whatever_the_clocks_say() -> None:
    engine = FakeEngine(max_num_seqs=1)
    engine.add(make_request("a", [1], 1, arrival_time=5000.0), make_request("b", [2], 1, arrival_time=1.0))
    engine.run()
    assert list(engine.last) == ["a", "b"]


# preemption ----------------------------------------------------------------------------------------------------------


def test_the_newest_gives_way_goes_back_to_the_head_and_comes_out_with_the_same_tokens() -> None:
    engine = FakeEngine(num_blocks=7, max_num_seqs=3)
    requests = [make_request(f"r{i}", prompt(i, 7), max_tokens=14) for i in range(4)]
    engine.add(*requests)
    while not engine.core.stats().num_preemptions:
        engine.step()
    (event,) = (event for event in engine.events if isinstance(event, RequestPreempted))
    assert (event.request_id, event.for_request_id) == ("r2", "r1")
    assert event.num_computed_tokens == 8
    preempted = engine.scheduler.requests["r2"]
    assert preempted.status is RequestStatus.PREEMPTED
    assert (preempted.block_table, preempted.num_computed_tokens, preempted.num_preemptions) == ([], 0, 1)
    assert [request.request_id for request in engine.scheduler.waiting] == ["r2", "r3"]
    engine.run()
    assert_right_tokens(engine, requests)


def test_the_least_urgent_gives_way_even_if_it_is_older() -> None:
    engine = FakeEngine(num_blocks=7, max_num_seqs=3)
    requests = [make_request(f"r{i}", prompt(i, 7), 14, priority=(1, 2, 0)[i]) for i in range(3)]
    engine.add(*requests)
    engine.run()
    (first, *_) = (event for event in engine.events if isinstance(event, RequestPreempted))
    assert (first.request_id, first.for_request_id) == ("r1", "r0")
    assert_right_tokens(engine, requests)


def test_the_last_in_order_preempts_itself() -> None:
    engine = FakeEngine(num_blocks=6)
    requests = [make_request("old", prompt(1, 12), 10), make_request("new", prompt(2, 8), 16)]
    engine.add(*requests)
    while not engine.core.stats().num_preemptions:
        engine.step()
    (event,) = (event for event in engine.events if isinstance(event, RequestPreempted))
    assert event.request_id == "new"
    engine.run()
    assert_right_tokens(engine, requests)


def test_a_request_that_needs_the_whole_pool_runs_alone_and_everyone_finishes() -> None:
    engine = FakeEngine(num_blocks=8)
    requests = [make_request(f"r{i}", prompt(i, 5), max_tokens=28) for i in range(6)]  # 33 tokens: all 8 blocks
    engine.add(*requests)
    engine.run()
    assert_right_tokens(engine, requests)
    assert list(engine.last) == [f"r{i}" for i in range(6)], "the oldest always moves"


def test_a_request_is_let_in_only_when_all_its_tokens_fit_so_that_a_prompt_is_never_preempted_half_way() -> None:
    engine = FakeEngine(num_blocks=16, max_num_batched_tokens=4)
    requests = [make_request(f"r{i}", prompt(i, 25), max_tokens=5) for i in range(4)]  # 7 blocks each, then 8
    engine.add(*requests)
    for _ in range(7):
        engine.step()
        assert len(engine.scheduler.running) <= 2
    engine.run()
    assert engine.core.stats().num_preemptions == 0
    assert_right_tokens(engine, requests)


def test_who_waits_for_blocks_is_told_how_many_and_looks_again_only_when_some_came_back() -> None:
    engine = FakeEngine(num_blocks=8)
    held: list[RequestHeldBack] = []
    engine.bus.subscribe(held.append, {RequestHeldBack})
    lookups: list[str] = []
    find = engine.kv.get_computed_blocks
    engine.kv.get_computed_blocks = lambda request: lookups.append(request.request_id) or find(request)
    engine.add(make_request("a", prompt(1, 17), max_tokens=4), make_request("b", prompt(2, 15), max_tokens=2))
    engine.run()
    assert {(event.limited_by, event.needed_blocks, event.num_free_blocks) for event in held} == {("kv_blocks", 4, 3)}
    assert [event.step for event in held] == [1], "told once, not in each of the four steps"
    assert lookups == ["a", "b", "b"]


def test_each_reason_to_be_held_back_is_told() -> None:
    engine = FakeEngine(num_blocks=8, max_num_batched_tokens=30, max_num_seqs=3)
    held: list[RequestHeldBack] = []
    engine.bus.subscribe(held.append, {RequestHeldBack})
    requests = [make_request(f"r{i}", prompt(i, 7), max_tokens=14) for i in range(5)]
    engine.add(*requests)
    engine.run()
    budget = FakeEngine(max_num_batched_tokens=4)
    budget.bus.subscribe(held.append, {RequestHeldBack})
    budget.add(make_request("long", prompt(1, 8)), make_request("waits", prompt(2, 8)))
    budget.run()
    assert {event.limited_by for event in held} == {"max_num_seqs", "kv_blocks", "preemption", "token_budget"}


# admission -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "words"),
    [
        (200, 1, "200 tokens; max_model_len=200"),
        (30, 40, "30 prompt tokens and up to 40 generated ones need 18 KV blocks of 4 tokens; the pool has 16"),
        (80, 10, "enough for 65 tokens"),
    ],
)
def test_what_can_never_fit_is_refused_with_the_numbers(num_prompt: int, max_tokens: int, words: str) -> None:
    engine = FakeEngine(num_blocks=16)
    with pytest.raises(ValueError, match=words):
        engine.scheduler.add_request(make_request("r", prompt(1, num_prompt), max_tokens))
    assert_idle(engine)


def test_what_fits_exactly_is_taken_and_finishes() -> None:
    engine = FakeEngine(num_blocks=16)
    request = make_request("r", prompt(1, 25), max_tokens=40)  # 65 tokens, the last needs no KV
    engine.add(request)
    engine.run()
    assert_right_tokens(engine, [request])


def test_a_prompt_that_fills_the_whole_pool_is_let_in_when_nothing_runs() -> None:
    engine = FakeEngine(num_blocks=16)
    requests = [make_request(f"r{i}", prompt(i, 64), max_tokens=1) for i in range(2)]
    engine.add(*requests)
    engine.run()
    assert_right_tokens(engine, requests)


def test_admission_leaves_running_requests_room_to_grow() -> None:
    engine = FakeEngine(num_blocks=128, max_num_batched_tokens=1000, max_num_seqs=8, max_model_len=600)
    engine.add(*(make_request(f"r{i}", prompt(i, 164), max_tokens=5) for i in range(3)))  # 41 blocks, then 42
    engine.add(make_request("fits, but for the reserve", prompt(9, 13), max_tokens=9))  # 4 of the 5 that are left
    engine.step()
    assert len(engine.scheduler.running) == 3
    engine.run()
    assert engine.core.stats().num_preemptions == 0


def test_a_request_may_ask_for_more_tokens_than_the_context_leaves() -> None:
    engine = FakeEngine(max_model_len=20)
    engine.add(make_request("r", prompt(1, 15), max_tokens=1000))
    engine.run()
    assert len(engine.tokens["r"]) == 5
    assert engine.last["r"].finish_reason is FinishReason.LENGTH


def test_an_id_in_use_is_refused() -> None:
    engine = FakeEngine()
    engine.scheduler.add_request(make_request("r", [1]))
    with pytest.raises(ValueError, match="in use"):
        engine.scheduler.add_request(make_request("r", [2]))


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "max_model_len"])
def test_limits_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0"):
        SchedulerConfig(**{"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_model_len": 1, name: 0})


# endings -------------------------------------------------------------------------------------------------------------


def tokens_from(script: list[int]) -> Callable[[Request], int]:
    return lambda request: script[request.num_output_tokens]


@pytest.mark.parametrize(
    ("params", "tokens", "reason", "stop_reason"),
    [
        ({}, [5, 6, 2], FinishReason.STOP, None),  # EOS is 2
        ({"ignore_eos": True}, [5, 6, 2, 7, 9, 2], FinishReason.LENGTH, None),
        ({"stop_token_ids": (6,)}, [5, 6], FinishReason.STOP, 6),
        ({"stop_token_ids": (9,), "ignore_eos": True}, [5, 6, 2, 7, 9], FinishReason.STOP, 9),
        ({"stop_token_ids": (6,), "min_tokens": 3}, [5, 6, 2], FinishReason.STOP, None),
        ({"min_tokens": 4}, [5, 6, 2, 7, 9, 2], FinishReason.STOP, None),
        ({"max_tokens": 2}, [5, 6], FinishReason.LENGTH, None),
        ({"max_tokens": 3}, [5, 6, 2], FinishReason.STOP, None),  # EOS as the last token allowed: it did stop
    ],
)
def test_a_request_ends_where_it_should(
    params: dict[str, object], tokens: list[int], reason: FinishReason, stop_reason: int | None
) -> None:
    engine = FakeEngine(sample=tokens_from([5, 6, 2, 7, 9, 2, 8]))
    engine.add(make_request("r", [1, 2, 3], eos_token_ids=(2, 3), **{"max_tokens": 6, **params}))
    engine.run()
    assert engine.tokens["r"] == tokens
    assert engine.last["r"].finish_reason is reason
    assert engine.last["r"].stop_reason == stop_reason
    assert_idle(engine)


def test_an_aborted_request_frees_everything_at_once_and_says_no_more() -> None:
    engine = FakeEngine(max_num_seqs=2)
    requests = [make_request(f"r{i}", prompt(i, 9), max_tokens=20) for i in range(4)]
    engine.add(*requests)
    for _ in range(3):
        engine.step()
    engine.core.abort_requests(["r0", "r3", "never seen"])
    assert running_ids(engine) == ["r1"]
    seen = len(engine.tokens["r0"])
    outputs = engine.step()
    assert {output.request_id for output in outputs.outputs} == {"r1", "r2"}
    engine.run()
    assert len(engine.tokens["r0"]) == seen
    assert set(engine.last) == {"r1", "r2"}
    assert_idle(engine)


def test_after_the_last_abort_one_more_step_tells_that_all_is_free() -> None:
    engine = FakeEngine()
    engine.add(make_request("r", prompt(1, 9)))
    engine.step()
    engine.core.abort_requests(["r"])
    assert engine.core.has_work()
    outputs = engine.step()
    assert (outputs.stats.num_running, outputs.stats.num_free_blocks) == (0, 64)
    assert [(event.request_id, event.reason) for event in outputs.events] == [("r", "abort")]
    assert_idle(engine)


@pytest.mark.parametrize("place", ["running", "waiting in the queue"])
def test_a_request_past_its_deadline_ends_with_a_clear_error_and_frees_all_it_held(place: str) -> None:
    engine = FakeEngine(max_num_seqs=1)
    now = engine.clock.time
    late = make_request("late", prompt(1, 9), 100, arrival_time=now - 1, deadline=now + 1.5)
    other = make_request("other", prompt(2, 9), 3, arrival_time=now, deadline=now + 100)
    engine.add(*((late, other) if place == "running" else (other, late)))
    engine.step()
    engine.clock.time += 2
    outputs = engine.step()
    (ended,) = (output for output in outputs.outputs if output.request_id == "late")
    assert ended.finish_reason is FinishReason.ERROR
    assert ended.error is not None
    assert ended.error.startswith(f"timed out: not finished 2.5 s after it arrived ({place}")
    engine.run()
    assert engine.tokens["other"] == continuation(other)
    assert_idle(engine)


def test_a_wall_clock_that_jumps_expires_nobody() -> None:
    engine = FakeEngine()
    monotonic = engine.clock.time
    engine.scheduler._monotonic = lambda: monotonic
    engine.add(make_request("r", [1], 5, arrival_time=engine.clock.time, deadline=engine.clock.time + 60))
    engine.clock.time += 86_400
    engine.run()
    assert engine.last["r"].finish_reason is FinishReason.LENGTH


def test_many_aborted_requests_leave_nothing_behind_in_the_queue() -> None:
    engine = FakeEngine(max_num_seqs=1)
    engine.add(make_request("first", [1], max_tokens=100))
    engine.step()
    for i in range(500):
        engine.add(make_request(f"r{i}", [1], deadline=engine.clock.time + 1000))
        engine.core.abort_requests([f"r{i}"])
    assert len(engine.scheduler.waiting) == 0
    assert len(engine.scheduler.waiting._entries) < 40
    assert len(engine.scheduler._deadlines._entries) < 40


# replay --------------------------------------------------------------------------------------------------------------


def test_a_replayed_request_continues_from_its_value() -> None:
    request = make_request("r", prompt(1, 9), max_tokens=10)
    whole = continuation(request)
    for told in range(1, 10):
        engine = FakeEngine()
        engine.add(make_request("r", prompt(1, 9), max_tokens=10, output_token_ids=whole[:told]))
        engine.run()
        assert engine.tokens["r"] == whole
        assert engine.runner.steps[0] == [("r", 0, 9 + told)]


def test_a_replay_that_had_come_to_its_end_is_finished_without_a_step() -> None:
    engine = FakeEngine()
    engine.add(make_request("length", [1, 2], max_tokens=2, output_token_ids=[7, 8]))
    engine.add(make_request("eos", [1, 2], max_tokens=9, output_token_ids=[7, 3], eos_token_ids=(3,)))
    engine.step()
    assert engine.runner.steps == []
    assert {name: output.finish_reason for name, output in engine.last.items()} == {
        "length": FinishReason.LENGTH,
        "eos": FinishReason.STOP,
    }
    assert_idle(engine)


def test_a_replay_does_not_tell_prompt_logprobs_again() -> None:
    engine = FakeEngine()
    engine.add(make_request("r", prompt(1, 9), max_tokens=4, output_token_ids=[7], prompt_logprobs=1))
    engine.run()
    assert all(output.prompt_logprobs is None for output in engine.all_outputs)


def test_several_tokens_a_step_stop_at_the_first_ending() -> None:
    engine = FakeEngine()
    engine.scheduler.add_request(make_request("r", [1], max_tokens=3, eos_token_ids=(9,)))
    scheduled = engine.scheduler.schedule()
    (output,) = engine.scheduler.update_from_output(scheduled, RunnerOutput([SampledRequest(token_ids=[5, 9, 6])]))
    assert output.new_token_ids == [5, 9]
    assert output.finish_reason is FinishReason.STOP


def test_status_goes_waiting_running_finished() -> None:
    engine = FakeEngine()
    engine.add(make_request("r", [1, 2], max_tokens=2))
    request: Request = engine.scheduler.requests["r"]
    seen = [request.status]
    engine.step()
    seen.append(request.status)
    engine.step()
    seen.append(request.status)
    assert seen == [RequestStatus.WAITING, RequestStatus.RUNNING, RequestStatus.FINISHED_LENGTH]
