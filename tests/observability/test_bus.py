"""The event bus: everything the engine decides can be heard, and nothing is made for nobody."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from fake_engine import FakeEngine, make_request

from pellucid.observability import events
from pellucid.observability.bus import ALWAYS_PUBLISHED, EventBus
from pellucid.observability.events import (
    BlockCached,
    BlocksAllocated,
    Event,
    PrefixHit,
    RequestArrived,
    StepStarted,
    TokenSampled,
    TokensScheduled,
)

FRONT_END_EVENTS = {events.EngineStarted, events.EngineDied, events.RequestReplayed}  # published by the engine's client


def arrived(request_id: str) -> RequestArrived:
    return RequestArrived(request_id=request_id, time=0.0, num_prompt_tokens=1)


def sampled(token_id: int) -> TokenSampled:
    return TokenSampled(request_id="r", time=0.0, step=1, index=0, token_id=token_id)


def test_subscribers_hear_their_kinds_in_order() -> None:
    bus = EventBus()
    every, tokens = [], []
    bus.subscribe(every.append)
    bus.subscribe(tokens.append, {TokenSampled})
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
    assert not bus.wants(TokenSampled)
    heard: list[Event] = []
    bus.subscribe(heard.append, {TokenSampled})
    assert bus.wants(TokenSampled)
    assert not bus.wants(BlockCached)
    bus.unsubscribe(heard.append)
    assert not bus.wants(TokenSampled)
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
    values = {"str": "x", "float": 1.5, "int": 3, "list[str]": ["a"], "list[int]": [1], "str | None": None}
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
    _, heard = crowded_engine(listen=True)
    assert {type(event) for event in heard} == set(get_args(Event)) - FRONT_END_EVENTS


def test_only_what_metrics_need_travels_when_nobody_listens() -> None:
    quiet, _ = crowded_engine(listen=False)
    loud, _ = crowded_engine(listen=True)
    assert {type(event) for event in quiet.events} == ALWAYS_PUBLISHED
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
        (event.request_id, event.step, event.start, event.num_tokens, event.limited_by)
        for event in heard
        if isinstance(event, TokensScheduled)
    ]
    assert shares == [("a", 1, 0, 9, ""), ("b", 1, 8, 1, "token_budget"), ("b", 2, 9, 2, ""), ("b", 3, 11, 1, "")]
    batches = [(event.request_ids, event.num_tokens) for event in heard if isinstance(event, StepStarted)]
    assert batches == [(["a", "b"], [9, 1]), (["b"], [2]), (["b"], [1])]
    tokens = [(event.request_id, event.index, event.token_id) for event in heard if isinstance(event, TokenSampled)]
    assert tokens == [("a", 0, engine.tokens["a"][0]), *(("b", i, token) for i, token in enumerate(engine.tokens["b"]))]
