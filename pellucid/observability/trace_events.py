"""From bus events to Chrome trace events: what Perfetto and chrome://tracing draw.

Process 1 is the engine, with one track of steps and their phases, and counters; process 2 has a track for each request.
A bus event that a story may need travels along, whole, in the `args.event` of one trace event: `pellucid explain` reads
them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pellucid.observability.events import (
    BlockEvicted,
    EngineDied,
    EngineStarted,
    Event,
    PrefixHit,
    RequestArrived,
    RequestFinished,
    RequestHeldBack,
    RequestPreempted,
    RequestRefused,
    RequestReplayed,
    RequestScheduled,
    RequestSubmitted,
    SchedulingPaused,
    StepCompleted,
    StepStarted,
)

TraceEvent = dict[str, Any]

ENGINE_PID, REQUESTS_PID = 1, 2
STEPS_TID = 1
MAX_TRACKS = 10_000  # requests remembered at a time; the oldest of them are let go

_MARKS: dict[type, str] = {
    RequestSubmitted: "submitted",
    RequestArrived: "arrived",
    RequestRefused: "refused",
    RequestHeldBack: "held back",
    PrefixHit: "prefix hit",
    RequestScheduled: "admitted",
    RequestPreempted: "preempted",
    RequestFinished: "finished",
    RequestReplayed: "replayed",
}
_ENGINE_MARKS: dict[type, str] = {
    BlockEvicted: "block evicted",
    EngineStarted: "engine started",
    EngineDied: "engine died",
    SchedulingPaused: "paused",
}


class _Track:
    """One request: which span is open on it, and how far its tokens are computed."""

    __slots__ = (
        "decoded", "is_over", "is_prefilling", "num_admitted", "num_computed", "num_prompt", "num_tokens", "open_span",
        "tid",
    )  # fmt: skip

    def __init__(self, tid: int) -> None:
        self.tid = tid
        self.open_span: str | None = None
        self.num_prompt = 0
        self.num_tokens = 0  # prompt and output so far
        self.num_admitted = 0  # the same when it was last admitted
        self.num_computed = 0
        self.is_prefilling = False
        self.is_over = False
        self.decoded = 0  # tokens sampled since it was admitted


class TraceEvents:
    """Call `convert` with every event in order. start: the time (of time.time()) that the trace calls zero."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._tracks: dict[str, _Track] = {}
        self._num_tracks = 0
        self._step: StepStarted | None = None  # the one in progress
        self._prefills: list[tuple[_Track, int, int]] = []  # its chunks of prompts: whose, from which token, how many

    def header(self) -> Iterator[TraceEvent]:
        for pid, name in ((ENGINE_PID, "engine"), (REQUESTS_PID, "requests")):
            yield _metadata("process_name", pid, 0, name)
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        yield _metadata("thread_name", ENGINE_PID, STEPS_TID, "steps")

    def convert(self, event: Event) -> Iterator[TraceEvent]:
        kind = type(event)
        if isinstance(event, StepStarted):
            self._count_shares(event)
        elif isinstance(event, StepCompleted):
            yield from self._on_step(event)
        elif kind in _ENGINE_MARKS:
            yield self._instant(_ENGINE_MARKS[kind], event, ENGINE_PID, STEPS_TID)
            if isinstance(event, EngineDied):
                yield from self._on_death(event)
        elif kind in _MARKS:
            yield from self._on_request(event)

    # a request's track -----------------------------------------------------------------------------------------------

    def _on_request(self, event: Any) -> Iterator[TraceEvent]:
        if isinstance(event, RequestSubmitted) and event.engine_request_ids != [event.request_id]:
            yield self._instant("submitted", event, ENGINE_PID, STEPS_TID)  # its continuations have the tracks
            return
        track = self._tracks.get(event.request_id)
        if track is None:
            track = self._new_track(event.request_id)
            yield _metadata("thread_name", REQUESTS_PID, track.tid, event.request_id)
        if isinstance(event, RequestArrived):
            track.num_prompt = event.num_prompt_tokens
            yield from self._switch(track, event.time, "queued")
        elif isinstance(event, PrefixHit):
            track.num_tokens = track.num_admitted = event.num_tokens
        elif isinstance(event, RequestScheduled):
            track.num_computed, track.is_prefilling, track.decoded = event.num_cached_tokens, True, 0
            yield from self._switch(track, event.time, None)
        elif isinstance(event, RequestPreempted):
            yield from self._switch(track, event.time, "preempted")
        elif isinstance(event, RequestFinished | RequestRefused):
            if isinstance(event, RequestFinished) and track.num_prompt:  # forced tokens came without a step
                track.decoded = track.num_prompt + event.num_output_tokens - track.num_admitted
            yield from self._switch(track, event.time, None)
            track.is_over = True
            self._tracks.pop(event.request_id, None)
        yield self._instant(_MARKS[type(event)], event, REQUESTS_PID, track.tid)

    def _new_track(self, request_id: str) -> _Track:
        self._num_tracks += 1
        track = self._tracks[request_id] = _Track(self._num_tracks)
        if len(self._tracks) > MAX_TRACKS:
            del self._tracks[next(iter(self._tracks))]
        return track

    def _switch(self, track: _Track, time_s: float, span: str | None) -> Iterator[TraceEvent]:
        """End the span that is open, and begin another."""
        if track.open_span is not None:
            end: TraceEvent = {"ph": "E", "ts": self._ts(time_s), "pid": REQUESTS_PID, "tid": track.tid}
            yield end | ({"args": {"tokens": track.decoded}} if track.open_span == "decode" else {})
        if span is not None:
            yield {"ph": "B", "name": span, "ts": self._ts(time_s), "pid": REQUESTS_PID, "tid": track.tid}
        track.open_span = span

    def _on_death(self, event: EngineDied) -> Iterator[TraceEvent]:
        for track in self._tracks.values():
            yield from self._switch(track, event.time, "waiting for an engine")

    # the track of steps ----------------------------------------------------------------------------------------------

    def _on_step(self, done: StepCompleted) -> Iterator[TraceEvent]:
        started, self._step = self._step, None
        begin, end = self._ts(done.time), self._ts(done.time + done.duration_s)
        yield _span(f"step {done.step}", begin, end, {"event": done})
        phases = (
            ("schedule", done.schedule_s),
            ("forward", done.forward_s),
            ("sample", done.sample_s),
            ("output", done.output_s),
        )
        at = done.time
        for name, duration_s in phases:
            args = {"event": started} if name == "schedule" and started is not None else None
            yield _span(name, self._ts(at), self._ts(at + duration_s), args)
            at += duration_s
        if started is None or started.step != done.step:
            return
        num_prefill = 0
        first_ts = self._ts(done.time + done.schedule_s)
        for track, first_token, num_tokens in self._prefills:
            num_prefill += num_tokens
            chunk = {"step": done.step, "first_token": first_token, "tokens": num_tokens}
            yield _span("prefill", first_ts, end, chunk, REQUESTS_PID, track.tid)
            if not track.is_prefilling and track.open_span is None and not track.is_over:
                yield {"ph": "B", "name": "decode", "ts": end, "pid": REQUESTS_PID, "tid": track.tid}
                track.open_span = "decode"
        yield _counter("tokens", begin, prefill=num_prefill, decode=done.num_tokens - num_prefill)
        yield _counter("blocks", begin, free=started.num_free_blocks)
        yield _counter("queue", begin, running=started.num_running, waiting=started.num_waiting)

    def _count_shares(self, started: StepStarted) -> None:
        """Now, and not when the step is done: a request that ends in it has left by then."""
        self._step, self._prefills = started, []
        for request_id, num_tokens in zip(started.request_ids, started.num_tokens, strict=True):
            track = self._tracks.get(request_id)
            if track is None:  # it came before the trace, or too long ago
                continue
            if track.is_prefilling:
                self._prefills.append((track, track.num_computed, num_tokens))
            track.num_computed += num_tokens
            if track.num_computed >= track.num_tokens:
                track.num_tokens = track.num_computed + 1
                track.decoded = track.num_tokens - track.num_admitted
                track.is_prefilling = False

    # the parts -------------------------------------------------------------------------------------------------------

    def _instant(self, name: str, event: Any, pid: int, tid: int) -> TraceEvent:
        return {
            "ph": "i", "s": "t", "name": name, "ts": self._ts(event.time), "pid": pid, "tid": tid,
            "args": {"event": event},
        }  # fmt: skip

    def _ts(self, time_s: float) -> float:
        """Microseconds, as the format wants them; what happened before the trace began is at its begin."""
        return round(max(time_s - self._start, 0.0) * 1e6, 1)


def _span(
    name: str, begin: float, end: float, args: Any = None, pid: int = ENGINE_PID, tid: int = STEPS_TID
) -> TraceEvent:
    span = {"ph": "X", "name": name, "ts": begin, "dur": round(max(end - begin, 0.0), 1), "pid": pid, "tid": tid}
    return span if args is None else {**span, "args": args}


def _counter(name: str, ts: float, **values: int) -> TraceEvent:
    return {"ph": "C", "name": name, "ts": ts, "pid": ENGINE_PID, "tid": 0, "args": values}


def _metadata(kind: str, pid: int, tid: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def events_in(trace_event: Any) -> Event | None:
    """The bus event that a decoded trace event carries. None: it carries none, or one of another version."""
    args = trace_event.get("args") if isinstance(trace_event, dict) else None
    if not isinstance(args, dict) or "event" not in args:
        return None
    try:
        return msgspec.convert(args["event"], Event)
    except msgspec.ValidationError:
        return None
