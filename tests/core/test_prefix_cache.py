"""Shared prefixes: who finds what, and who must not."""

from __future__ import annotations

import itertools

import pytest
from fake_engine import FakeEngine, assert_idle, continuation, make_request, prompt_logprob
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core import prefix_cache
from pellucid.core.prefix_cache import block_hash, root_hash
from pellucid.core.scheduler_output import RunnerOutput, SampledRequest, SchedulerOutput

PREFIX = list(range(100, 132))  # 8 blocks of 4


def test_salt_and_adapter_cannot_be_taken_for_one_another() -> None:
    texts = [None, "", "a", "b", "ab", "salt", "\x00", "a\x00b"]
    roots = {root_hash(salt, adapter) for salt, adapter in itertools.product(texts, texts)}
    assert len(roots) == len(texts) ** 2


@given(st.lists(st.integers(0, 2**32 - 1), max_size=6), st.lists(st.integers(0, 2**32 - 1), max_size=6))
def test_different_tokens_or_parents_have_different_keys(one: list[int], other: list[int]) -> None:
    root = root_hash()
    assert (block_hash(root, one) == block_hash(root, other)) == (one == other)
    assert block_hash(root, one) != block_hash(root_hash("salt"), one)
    assert block_hash(block_hash(root, other), one) != block_hash(root, one)


def test_requests_that_arrive_together_share_their_prefix_in_the_first_step() -> None:
    engine = FakeEngine()
    requests = [make_request(f"r{i}", [*PREFIX, i]) for i in range(4)]
    engine.add(*requests)
    engine.step()
    assert engine.runner.steps == [[("r0", 0, 33), ("r1", 32, 1), ("r2", 32, 1), ("r3", 32, 1)]]
    assert engine.kv.pool.num_blocks - engine.kv.num_free_blocks == 8 + 4  # the prefix once, a block of their own each
    engine.run()
    for request in requests:
        assert engine.tokens[request.request_id] == continuation(request)
    assert [engine.last[f"r{i}"].num_cached_tokens for i in range(4)] == [0, 32, 32, 32]
    stats = engine.core.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (4 * 33, 3 * 32)
    assert_idle(engine)


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    engine = FakeEngine()
    for name in ("first", "again"):
        engine.add(make_request(name, PREFIX, max_tokens=3))
        engine.run()
    assert engine.tokens["first"] == engine.tokens["again"] == continuation(make_request("r", PREFIX, 3))
    assert engine.last["again"].num_cached_tokens == 28
    assert ("again", 28, 4) in engine.runner.steps[3]


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    engine = FakeEngine()
    first = make_request("turn1", PREFIX, max_tokens=9)
    engine.add(first)
    engine.run()
    engine.add(make_request("turn2", [*PREFIX, *continuation(first), 1, 2]))
    engine.run()
    assert engine.last["turn2"].num_cached_tokens == 40  # of 32 + 9: the last token of turn 1 was never computed


def test_the_end_of_a_prefix_is_evicted_before_its_start() -> None:
    engine = FakeEngine(num_blocks=10)
    engine.add(make_request("r", PREFIX, max_tokens=1))
    engine.run()
    engine.add(make_request("other", range(200, 216), max_tokens=1))  # takes the 2 empty blocks and 2 of the prefix
    engine.run()
    engine.add(make_request("again", PREFIX, max_tokens=1))
    engine.run()
    assert engine.last["again"].num_cached_tokens == 24


def test_another_salt_sees_nothing() -> None:
    engine = FakeEngine()
    requests = [make_request(str(salt), PREFIX, cache_salt=salt) for salt in (None, "alice", "bob")]
    for request in requests:
        engine.add(request)
        engine.run()
        assert engine.last[request.request_id].num_cached_tokens == 0
        assert engine.tokens[request.request_id] == continuation(request)
    engine.add(make_request("alice again", PREFIX, cache_salt="alice"))
    engine.run()
    assert engine.last["alice again"].num_cached_tokens == 28


def test_without_prefix_caching_nothing_is_shared_or_kept() -> None:
    engine = FakeEngine(enable_prefix_caching=False)
    engine.add(*(make_request(f"r{i}", PREFIX) for i in range(2)))
    engine.run()
    assert engine.runner.steps[0] == [("r0", 0, 32), ("r1", 0, 32)]
    stats = engine.core.stats()
    assert (stats.num_cached_blocks, stats.prefix_cache_queries, stats.prefix_cache_hits) == (0, 0, 0)


def test_each_full_block_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[list[int]] = []

    def count(parent: bytes, token_ids: list[int]) -> bytes:
        hashed.append(token_ids)
        return block_hash(parent, token_ids)

    monkeypatch.setattr(prefix_cache, "block_hash", count)
    engine = FakeEngine(num_blocks=14, max_num_batched_tokens=7)  # chunks that end within blocks, and preemptions
    requests = [make_request(f"r{i}", [i, *PREFIX[:20]], max_tokens=16) for i in range(2)]
    engine.add(*requests)
    engine.run()
    assert engine.core.stats().num_preemptions > 0
    sequences = [[*request.prompt_token_ids, *continuation(request)] for request in requests]
    # The last token (of 37) is never computed, and a block is hashed when it is full.
    assert sorted(hashed) == sorted(tokens[i : i + 4] for tokens in sequences for i in range(0, 36, 4))


def test_prompt_logprobs_skip_the_lookup_but_fill_the_cache() -> None:
    engine = FakeEngine(max_num_batched_tokens=10)
    for name in ("first", "second"):
        engine.add(make_request(name, PREFIX, max_tokens=2, prompt_logprobs=1))
        engine.run()
        assert engine.last[name].num_cached_tokens == 0
    told = [output for output in engine.all_outputs if output.prompt_logprobs is not None]
    assert [output.request_id for output in told] == ["first", "second"]  # once each
    for output in told:
        assert len(output.new_token_ids) == 1  # with the first token
        assert output.prompt_logprobs == [prompt_logprob(PREFIX, i) for i in range(1, 32)]
    engine.add(make_request("third", PREFIX, max_tokens=2))
    engine.run()
    assert engine.last["third"].num_cached_tokens == 28


def test_prompt_logprobs_survive_a_preemption_in_the_middle_of_the_prompt() -> None:
    engine = FakeEngine(num_blocks=15, max_num_batched_tokens=6)
    prompt = [*range(200, 230)]
    engine.add(make_request("old", [1, 2, 3], max_tokens=40), make_request("new", prompt, 4, prompt_logprobs=0))
    while engine.scheduler.running[-1:] != [engine.scheduler.requests.get("new")]:
        engine.step()
    for _ in range(3):
        engine.step()
    new = engine.scheduler.requests["new"]
    assert 0 < new.num_computed_tokens < 30
    engine.scheduler._preempt(new, new)
    engine.run()
    told = [output for output in engine.all_outputs if output.prompt_logprobs is not None]
    assert [output.prompt_logprobs for output in told] == [[prompt_logprob(prompt, i) for i in range(1, 30)]]
    assert engine.tokens["new"] == continuation(make_request("new", prompt, 4))


def test_what_a_failed_request_computed_is_not_found_by_others() -> None:
    engine = FakeEngine(fail=lambda share: "NaN in the logits" if share.request.request_id == "bad" else None)
    engine.add(make_request("bad", PREFIX))
    engine.run()
    assert engine.last["bad"].error == "NaN in the logits"
    assert engine.core.stats().num_cached_blocks == 0
    engine.add(make_request("good", PREFIX))
    engine.run()
    assert engine.last["good"].num_cached_tokens == 0
    assert_idle(engine)


def test_a_request_from_which_only_nothing_can_be_sampled_costs_nobody_the_prefix() -> None:
    engine = FakeEngine(
        fail=lambda share: "no token is left" if share.request.request_id.startswith("bad") else None, kv_in_doubt=False
    )
    engine.add(make_request("first", PREFIX))
    engine.run()
    engine.add(make_request("bad", [*PREFIX, 1]), make_request("mate", [*PREFIX, 2]))
    engine.run()
    assert engine.last["bad"].error == "no token is left"
    engine.add(make_request("bad alone", PREFIX), make_request("new", [*PREFIX, 3]))
    engine.run()
    assert engine.last["mate"].num_cached_tokens == engine.last["new"].num_cached_tokens == 32
    assert engine.core.stats().num_preemptions == 0
    assert_idle(engine)


def test_what_was_computed_after_a_failed_requests_block_is_not_found_though_only_nothing_could_be_sampled() -> None:
    results = {"bad": SampledRequest(error="broken"), "no token": SampledRequest(error="none left", kv_in_doubt=False)}
    engine = FakeEngine()
    execute = engine.runner.execute

    def fail_both(scheduled: SchedulerOutput) -> RunnerOutput:
        ids = [share.request.request_id for share in scheduled.requests]
        found = execute(scheduled).requests
        return RunnerOutput([results.get(name, result) for name, result in zip(ids, found, strict=True)])

    engine.runner.execute = fail_both  # type: ignore[method-assign]
    engine.add(make_request("bad", [*PREFIX, 1]), make_request("no token", [*PREFIX, 5, 5, 5, 5, 2]))
    engine.run()
    assert {name: engine.last[name].error for name in results} == {"bad": "broken", "no token": "none left"}
    assert engine.core.stats().num_cached_blocks == 0
    assert_idle(engine)


@pytest.mark.parametrize("writes_before_failing", [True, False])
def test_whoever_relied_on_a_failed_request_in_the_same_step_computes_for_itself(writes_before_failing: bool) -> None:
    engine = FakeEngine(
        fail=lambda share: "broken" if share.request.request_id == "bad" else None,
        writes_before_failing=writes_before_failing,
    )
    others = [make_request(f"r{i}", [*PREFIX, i // 2, 5, 5, 5, i]) for i in range(4)]  # r1 shares with r0, r3 with r2
    unrelated = make_request("unrelated", [7, 8, 9])
    engine.add(make_request("bad", [*PREFIX, 50]), *others, unrelated)
    engine.run()
    assert engine.last["bad"].error == "broken"
    for request in (*others, unrelated):
        assert engine.tokens[request.request_id] == continuation(request)
    assert [event.request_id for event in engine.events if type(event).__name__ == "RequestPreempted"] == [
        "r0",
        "r1",
        "r2",
        "r3",
    ]
    assert_idle(engine)
