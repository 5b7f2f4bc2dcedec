"""The event bus: everything the engine decides can be heard, and nothing is made for nobody."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from fake_engine import FakeEngine, continuation, make_request

from pellucid.core.messages import ControlAction
from pellucid.observability import events
from pellucid.observability.bus import ALWAYS_PUBLISHED, EventBus
from pellucid.observability.events import (
    BlockCached,
    BlocksAllocated,
    Event,
    PrefixHit,
    RequestArrived,
    StepStarted,
    TokensSampled,
    TokensScheduled,
)

# published outside of the engine; tests/server/test_glass_walls.py sees them all
FRONT_END_EVENTS = {events.RequestSubmitted, events.EngineStarted, events.EngineDied, events.RequestReplayed}
ON_DEMAND = {events.EngineSnapshot, events.SchedulingPaused}  # published whenever they happen: when an operator asks


def arrived(request_id: str) -> RequestArrived:
    return RequestArrived(request_id=request_id, time=0.0, num_prompt_tokens=1)


def sampled(token_id: int) -> TokensSampled:
    return TokensSampled(step=1, time=0.0, request_ids=["r"], indexes=[0], token_ids=[token_id], forced=[False])


def test_subscribers_hear_their_kinds_in_order() -> None:
    bus = EventBus()
    every, tokens = [], []
    bus.subscribe(every.append)
    bus.subscribe(tokens.append, {TokensSampled})
    told = [arrived("a"), sampled(1), arrived("b"), sampled(2)]
    for event in told:
        bus.publish(event)
    assert every == told
    assert tokens == [told[1], told[3]]
    bus.unsubscribe(tokens.append)  # an equal method, not the same object
    bus.publish(sampled(3))
    assert len(tokens) == 2
    assert len(every) == 5


def test_rare_events_are_wanted_always_and_frequent_ones_only_by_somebody() -> None:
    bus = EventBus()
    assert all(bus.wants(kind) for kind in ALWAYS_PUBLISHED)
    assert not bus.wants(TokensSampled)
    heard: list[Event] = []
    bus.subscribe(heard.append, {TokensSampled})
    assert bus.wants(TokensSampled)
    assert not bus.wants(BlockCached)
    bus.unsubscribe(heard.append)
    assert not bus.wants(TokensSampled)
    bus.subscribe(heard.append)
    assert bus.wants(BlockCached)
    assert EventBus(record={BlockCached}).wants(BlockCached)


def test_the_ring_keeps_the_last_events() -> None:
    bus = EventBus(capacity=3)
    for i in range(5):
        bus.publish(arrived(str(i)))
    assert [event.request_id for event in bus.recent()] == ["2", "3", "4"]  # type: ignore[union-attr]
    assert bus.num_published == 5


def test_a_subscriber_that_fails_is_dropped_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus()
    heard: list[Event] = []
    calls = []

    def broken(event: Event) -> None:
        calls.append(event)
        raise RuntimeError("a reader's mistake")

    bus.subscribe(broken)
    bus.subscribe(heard.append)
    bus.publish(arrived("a"))
    bus.publish(arrived("b"))
    assert len(calls) == 1
    assert len(heard) == 2
    assert "a reader's mistake" in caplog.text


def test_every_event_crosses_a_process_boundary_as_itself() -> None:
    values = {
        "str": "x",
        "float": 1.5,
        "int": 3,
        "bool": True,
        "str | None": None,
        "list[str]": ["a"],
        "list[int]": [1],
        "list[bool]": [True],
        "list[RequestState]": [],
        "list[CachedBlock]": [],
    }
    for kind in get_args(Event):
        event = kind(**{name: values[kind.__annotations__[name]] for name in kind.__struct_fields__})
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event) == event
        assert kind.__doc__


def crowded_engine(listen: bool) -> tuple[FakeEngine, list[Event]]:
    """A life with everything in it: sharing, chunks, preemption, eviction, a refusal, a failure, an abort."""
    engine = FakeEngine(
        num_blocks=12, max_num_batched_tokens=9, max_num_seqs=3, fail=lambda s: {"bad": "NaN"}.get(s.request.request_id)
    )
    heard: list[Event] = []
    if listen:
        engine.bus.subscribe(heard.append)
    engine.add(make_request("refused", []))
    engine.add(*(make_request(f"r{i}", [1, 2, 3, 4, 5, 6, i], max_tokens=20) for i in range(4)))
    engine.add(make_request("bad", [1, 2, 3, 4, 5]), make_request("gone", [8] * 9, max_tokens=20))
    for _ in range(4):
        engine.step()
    engine.core.abort_requests(["gone"])
    engine.run()
    return engine, heard


def test_every_event_of_the_engine_is_published_by_it() -> None:
    engine, heard = crowded_engine(listen=True)
    engine.core.control(ControlAction.PAUSE)
    engine.core.watch(detail=True)
    assert {type(event) for event in heard} == set(get_args(Event)) - FRONT_END_EVENTS


def test_what_is_made_per_token_or_block_travels_only_when_somebody_listens() -> None:
    quiet, _ = crowded_engine(listen=False)
    loud, _ = crowded_engine(listen=True)
    assert {type(event) for event in quiet.events} == ALWAYS_PUBLISHED - ON_DEMAND
    assert [type(event) for event in quiet.events] == [type(event) for event in loud.events]
    assert quiet.tokens == loud.tokens
    assert quiet.bus.num_published == len(quiet.events)


def test_the_events_tell_the_story_of_a_shared_prefix() -> None:
    engine = FakeEngine(num_blocks=12, max_num_batched_tokens=10)
    heard: list[Event] = []
    engine.bus.subscribe(heard.append)
    engine.add(make_request("a", range(9), max_tokens=1), make_request("b", [*range(9), 50, 51], max_tokens=2))
    engine.run()
    hits = {event.request_id: event for event in heard if isinstance(event, PrefixHit)}
    assert (hits["a"].num_cached_tokens, hits["a"].ended_by) == (0, "miss")
    assert (hits["b"].num_cached_tokens, hits["b"].ended_by) == (8, "last_token")
    tables = {event.request_id: event for event in heard if isinstance(event, BlocksAllocated)}
    assert tables["a"].block_ids[:2] == tables["b"].block_ids[: tables["b"].num_shared] == [0, 1]
    shares = [
        (request_id, event.step, start, num_tokens, limited_by)
        for event in heard
        if isinstance(event, TokensScheduled)
        for request_id, start, num_tokens, limited_by in zip(
            event.request_ids, event.starts, event.num_tokens, event.limited_by, strict=True
        )
    ]
    assert shares == [("a", 1, 0, 9, ""), ("b", 1, 8, 1, "token_budget"), ("b", 2, 9, 2, ""), ("b", 3, 11, 1, "")]
    batches = [(event.request_ids, event.num_tokens) for event in heard if isinstance(event, StepStarted)]
    assert batches == [(["a", "b"], [9, 1]), (["b"], [2]), (["b"], [1])]
    tokens = [
        told
        for event in heard
        if isinstance(event, TokensSampled)
        for told in zip(event.request_ids, event.indexes, event.token_ids, strict=True)
    ]
    assert tokens == [("a", 0, engine.tokens["a"][0]), *(("b", i, token) for i, token in enumerate(engine.tokens["b"]))]


def test_a_snapshot_and_the_events_after_it_add_up_to_the_state_of_the_pool() -> None:
    """What a page does that connects in the middle."""
    engine = FakeEngine(num_blocks=20, max_num_seqs=2)
    shared = list(range(9))
    engine.add(*(make_request(f"r{i}", [*shared, i], max_tokens=12) for i in range(3)))
    engine.step()
    assert [type(event) for event in engine.step().events] == [StepStarted, events.StepCompleted]
    engine.core.watch(detail=True)
    engine.add(make_request("late", [7] * 6, max_tokens=3))
    told: list[Event] = []
    for _ in range(8):
        told += engine.step().events
    begin = next(i for i, event in enumerate(told) if isinstance(event, events.EngineSnapshot))
    snapshot = told[begin]
    assert isinstance(snapshot, events.EngineSnapshot)
    assert [(r.request_id, r.status) for r in snapshot.requests] == [
        ("r0", "running"), ("r1", "running"), ("r2", "waiting"),
    ]  # fmt: skip
    assert snapshot.requests[1].num_cached_tokens == 8
    assert {block.block_id: block.ref_cnt for block in snapshot.cached_blocks if block.parent_hash is None} == {0: 2}
    assert (snapshot.num_blocks, snapshot.block_size, snapshot.paused, snapshot.step) == (20, 4, False, 2)

    tables = {request.request_id: list(request.block_ids) for request in snapshot.requests}
    cached = {block.block_id for block in snapshot.cached_blocks}
    for event in told[begin + 1 :]:
        if isinstance(event, BlocksAllocated):
            tables[event.request_id] = tables.get(event.request_id, []) + event.block_ids
        elif isinstance(event, events.BlocksFreed):
            tables[event.request_id] = []
        elif isinstance(event, BlockCached):
            cached.add(event.block_id)
        elif isinstance(event, events.BlockEvicted | events.BlockWithdrawn):
            cached.discard(event.block_id)
    assert tables["r0"]
    assert {r.request_id: r.block_table for r in engine.scheduler.requests.values()} == {
        request_id: tables.get(request_id, []) for request_id in engine.scheduler.requests
    }
    assert {block.block_id for block in engine.kv.pool.blocks if block.block_hash is not None} == cached
    engine.core.watch(detail=False)
    engine.step()
    assert not {type(event) for event in engine.step().events} - ALWAYS_PUBLISHED


def test_a_vector_is_not_said_to_be_cut_short_by_the_token_budget() -> None:
    engine = FakeEngine(max_num_batched_tokens=8)
    engine.core.watch(detail=True)
    engine.add(make_request("r", list(range(20)), pooling="mean"))
    engine.run()
    told = [event for event in engine.events if isinstance(event, events.TokensScheduled)]
    assert [(event.num_tokens, event.limited_by) for event in told] == [
        ([8], ["token_budget"]), ([8], ["token_budget"]), ([4], [""]),
    ]  # fmt: skip


def test_a_paused_scheduler_takes_requests_and_makes_single_steps() -> None:
    engine = FakeEngine()
    engine.core.control(ControlAction.STEP)  # not paused: means nothing
    engine.core.control(ControlAction.PAUSE)
    engine.core.control(ControlAction.PAUSE)
    engine.add(make_request("a", [1, 2, 3], max_tokens=3), make_request("b", [4], max_tokens=3))
    told = engine.step().events
    assert [event.paused for event in told if isinstance(event, events.SchedulingPaused)] == [True]
    assert (engine.core.stats().num_waiting, engine.core.stats().num_running) == (2, 0)
    assert not engine.core.has_work(), "a paused engine sleeps"
    engine.core.control(ControlAction.STEP)
    assert engine.core.has_work()
    assert len(engine.step().outputs) == 2
    assert not engine.core.has_work()
    engine.core.abort_requests(["b"])
    assert engine.core.has_work(), "that somebody left is still told"
    engine.step()
    engine.core.control(ControlAction.RESUME)
    engine.run()
    assert engine.tokens["a"] == continuation(make_request("a", [1, 2, 3], max_tokens=3))
