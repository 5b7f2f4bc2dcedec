"""`explain` says why: what is told of a request that was held back, found its prefix, gave way, or was refused."""

from __future__ import annotations

import re

import pytest
from fake_engine import FakeEngine, make_request

from pellucid.observability.events import PrefixHit, RequestArrived, StepCompleted
from pellucid.observability.explain import UnknownSubjectError, explain_cache, explain_request, explain_step
from pellucid.observability.history import History


def run(engine: FakeEngine) -> History:
    history = History()
    while engine.core.has_work():
        history.on_events(engine.step().events)
    return history


def told(history: History, request_id: str) -> str:
    return "\n".join(line.text for line in explain_request(history.events(), request_id).lines)


def test_a_request_that_waits_for_blocks_says_how_many_it_needed() -> None:
    engine = FakeEngine(num_blocks=8)
    engine.add(make_request("first", range(17), max_tokens=4), make_request("second", range(100, 115), max_tokens=2))
    story = told(run(engine), "second")
    assert re.search(r"waited 4\d\.\d ms because the pool had 3 free blocks, and it needed 4", story)
    assert "nothing of its 15 tokens was found in the prefix cache: its first block is not there" in story


def test_a_request_behind_another_names_it() -> None:
    engine = FakeEngine(max_num_seqs=1)
    engine.add(*(make_request(name, [i, 2, 3], max_tokens=3) for i, name in enumerate("abc")))
    history = run(engine)
    limit = "as many requests were running as may (max_num_seqs)"
    assert f"waited 30.0 ms because {limit}" in told(history, "b")
    assert f"waited 60.0 ms behind b, which was first in the queue: {limit}; then because {limit}" in told(history, "c")


def test_a_request_that_arrives_within_a_step_did_not_wait_for_the_step_that_computes_it() -> None:
    def story(step_s: float) -> str:
        step = StepCompleted(step=7, time=1.0, num_reqs=1, num_tokens=3, num_sampled=1, schedule_s=0.0,
                             forward_s=step_s, sample_s=0.0, output_s=0.0)  # fmt: skip
        history = History()
        history.on_events(
            [
                RequestArrived(request_id="a", time=1.1, num_prompt_tokens=3, num_output_tokens=0, max_num_tokens=9),
                PrefixHit(request_id="a", time=1.3, num_tokens=3, num_cached_tokens=0, ended_by="miss"),
                step,
            ]
        )
        return told(history, "a")

    assert "it waited 200.0 ms for step 7 to end" in story(step_s=0.2)
    assert "for step 7" not in story(step_s=5.0)


def test_a_cached_request_says_what_it_found() -> None:
    engine = FakeEngine()
    engine.add(make_request("a", range(9), max_tokens=1), make_request("b", [*range(9), 50, 51], max_tokens=4))
    story = told(run(engine), "b")
    assert "8 of its 11 tokens were cached, and not computed again" in story
    assert re.search(r"it decoded in 3 steps \(steps 2 to 4\), \S+ ms each on median, alone", story)
    assert "it reached its max_tokens, or the end of the context (4 tokens generated in all)" in story


def test_a_preempted_request_says_for_whom_and_what_it_cost() -> None:
    engine = FakeEngine(num_blocks=10)
    engine.add(*(make_request(f"r{i}", [i] * 11, max_tokens=20) for i in range(3)))
    history = run(engine)
    stories = [told(history, f"r{i}") for i in range(3)]
    assert "preempted" not in stories[0], "the first in order always moves"
    assert re.search(r"preempted: the pool had no free block, r\d needed a block and this one was the last in order; "
                     r"\d+ computed tokens were thrown away", stories[2])  # fmt: skip
    assert stories[2].count("tokens were computed in step") >= 2, "computed again"


@pytest.mark.parametrize(
    ("max_forced", "said"),
    [
        (0, None),
        (1, "1 token was forced by its constraint or thinking budget, and cost no step of its own"),
        (4, "4 tokens were forced by its constraint or thinking budget, and cost no step of their own"),
    ],
)
def test_forced_tokens_are_told(max_forced: int, said: str | None) -> None:
    engine = FakeEngine(max_forced=max_forced, is_forced=lambda request, so_far: request.num_output_tokens == 0)
    engine.add(make_request("a", range(9), max_tokens=8))
    history = run(engine)
    story = told(history, "a")
    assert (said in story) if said else ("forced" not in story)
    assert f"it decoded in {7 - max_forced} steps" in story
    [step] = [line.text for line in explain_step(history.events(), 1).lines if "computed together" in line.text]
    came = f"{1 + max_forced} token{'s' if max_forced else ''} came out"
    forced = f", {max_forced} of them forced by a constraint" if max_forced else ""
    assert step.endswith(came + forced)


def test_a_chunked_prompt_says_its_pieces() -> None:
    engine = FakeEngine(max_num_batched_tokens=8)
    engine.add(make_request("long", range(20), max_tokens=2))
    story = told(run(engine), "long")
    assert "20 tokens were computed in steps 1 to 3 in 3 pieces (8, 8, 4), as a step has room for so many" in story


def test_a_refused_request_says_why() -> None:
    engine = FakeEngine()
    engine.add(make_request("too-long", range(200), max_tokens=1))
    story = told(run(engine), "too-long")
    assert story.startswith("it was refused by the engine: the prompt has 200 tokens; max_model_len=200 leaves no room")


def test_an_aborted_and_a_failed_request_say_so() -> None:
    engine = FakeEngine(fail=lambda share: "NaN" if share.request.request_id == "bad" else None)
    engine.add(make_request("bad", [1]), make_request("gone", [2]))
    history = History()
    history.on_events(engine.step().events)
    engine.core.abort_requests(["gone"])
    history.on_events(engine.step().events)
    assert "it failed: NaN" in told(history, "bad")
    assert "it was aborted" in told(history, "gone")


def test_one_that_is_still_there_says_where_it_stands() -> None:
    engine = FakeEngine(max_num_seqs=1)
    engine.add(make_request("runs", [1], max_tokens=9), make_request("waits", [2]))
    history = History()
    for _ in range(3):
        history.on_events(engine.step().events)
    assert told(history, "runs").endswith("it is running")
    assert "and still waits" in told(history, "waits")


def test_a_step_says_who_was_in_it_and_who_was_not() -> None:
    engine = FakeEngine(max_num_seqs=2)
    engine.add(*(make_request(name, [i, 2, 3], max_tokens=3) for i, name in enumerate("abc")))
    history = run(engine)
    first = "\n".join(line.text for line in explain_step(history.events(), 1).lines)
    assert "2 requests and 6 tokens were computed together, 2 tokens came out" in first
    assert "a: 3 tokens" in first
    assert "c was not let in: as many requests were running as may (max_num_seqs)" in first
    assert "1 were left waiting" in first
    assert re.search(r"it took .*: schedule .*, forward .*, sample .*, output ", first)
    with pytest.raises(UnknownSubjectError, match=r"no step 99 among the last .*: they hold steps 1 to"):
        explain_step(history.events(), 99)


def test_the_cache_says_which_prefixes_live_how_often_they_were_hit_and_what_was_evicted() -> None:
    engine = FakeEngine(num_blocks=12)
    system = list(range(8))
    history = History()
    for i in range(3):
        engine.add(make_request(f"chat{i}", [*system, 100 + i, 101, 102, 103, 104], max_tokens=1))
        while engine.core.has_work():
            history.on_events(engine.step().events)
    engine.core.watch(detail=True)
    (snapshot,) = (event for event in engine.step().events if type(event).__name__ == "EngineSnapshot")
    text = "\n".join(line.text for line in explain_cache(history.events(), snapshot).lines)
    assert re.search(
        r"prefix \w{8}: 2 blocks = 8 tokens, hit 2 times, held by 0 requests now; 3 ways on from there", text
    )
    assert "of the last 3 admissions, 2 found a prefix: 16 of 39 tokens (41%)" in text
    assert "no block was evicted" in text
    engine.add(make_request("big", range(500, 545), max_tokens=1))
    history.on_events(engine.step().events)
    assert re.search(r"\d+ cached blocks? evicted for big", explain_cache(history.events(), None).text())


def test_who_is_unknown_is_told_what_an_id_is() -> None:
    with pytest.raises(UnknownSubjectError, match="take the id of a response, or its x-request-id header"):
        explain_request([], "nobody")


def test_the_history_is_bounded_and_steps_do_not_push_out_decisions() -> None:
    engine = FakeEngine(max_model_len=2000, num_blocks=600)
    history = History(num_steps=10, num_decisions=20)
    engine.add(make_request("r", [1], max_tokens=500))
    while engine.core.has_work():
        history.on_events(engine.step().events)
    assert len(history.events()) <= 40
    assert "it arrived with 1 prompt token" in told(history, "r")
