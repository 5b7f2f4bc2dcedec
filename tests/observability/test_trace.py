"""The trace is what the trace-event format says, and holds exactly what happened."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fake_engine import FakeEngine, make_request

from pellucid.observability.events import RequestFinished, RequestPreempted, StepCompleted
from pellucid.observability.trace_file import TraceFile, read_trace

EOS = 999

# The parts of the trace-event format that a viewer relies on, by phase.
_PLACE = {"pid": {"type": "integer"}, "tid": {"type": "integer"}}
_TIME = {"ts": {"type": "number", "minimum": 0}, **_PLACE}
_NAME = {"name": {"type": "string", "minLength": 1}}
_PHASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "X": ({**_NAME, **_TIME, "dur": {"type": "number", "minimum": 0}}, ["name", "ts", "dur", "pid", "tid"]),
    "B": ({**_NAME, **_TIME}, ["name", "ts", "pid", "tid"]),
    "E": (_TIME, ["ts", "pid", "tid"]),
    "i": ({**_NAME, **_TIME, "s": {"enum": ["t", "p", "g"]}}, ["name", "ts", "pid", "tid", "s"]),
    "C": (
        {**_NAME, **_TIME, "args": {"type": "object", "additionalProperties": {"type": "number"}, "minProperties": 1}},
        ["name", "ts", "pid", "args"],
    ),
    "M": ({**_NAME, **_PLACE, "args": {"type": "object"}}, ["name", "pid", "args"]),
}
TRACE_SCHEMA = {
    "type": "array",
    "items": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"ph": {"const": phase}, "args": {"type": "object"}, **properties},
                "required": ["ph", *required],
            }
            for phase, (properties, required) in _PHASES.items()
        ]
    },
}


def load(path: Path) -> list[dict[str, Any]]:
    """As a viewer does: the closing bracket may be missing."""
    text = path.read_text().rstrip()
    return json.loads(text if text.endswith("]") else text.rstrip(",") + "]")


def check_format(events: list[dict[str, Any]]) -> None:
    jsonschema.validate(events, TRACE_SCHEMA)
    open_spans: Counter[tuple[int, int]] = Counter()
    for event in events:  # spans that begin also end, on their own track, and never the other way round
        if event["ph"] in "BE":
            track = (event["pid"], event["tid"])
            open_spans[track] += 1 if event["ph"] == "B" else -1
            assert 0 <= open_spans[track] <= 1
    named = {
        (event["pid"], event["tid"]) for event in events if event["name" if "name" in event else "ph"] == "thread_name"
    }
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] in "XBEi"}
    assert used <= named, "every track has a name"


def run_traced(engine: FakeEngine, path: Path) -> list[dict[str, Any]]:
    trace = TraceFile(path)
    while engine.core.has_work():
        trace.on_events(engine.step().events)
    trace.close()
    events = load(path)
    check_format(events)
    return events


def spans(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event["name"].startswith(name)]


def test_two_prompts_that_end_after_148_and_256_tokens_make_exactly_those_steps(tmp_path: Path) -> None:
    """The worked example: prompts of 11 and 17 tokens; the first ends on EOS after 148 tokens, the second at 256."""

    def sample(request: Any) -> int:
        return EOS if request.request_id == "a" and request.num_output_tokens == 147 else 5

    engine = FakeEngine(num_blocks=4, block_size=256, max_model_len=512, max_num_batched_tokens=512, sample=sample)
    engine.add(
        make_request("a", range(11), max_tokens=256, eos_token_ids=(EOS,)),
        make_request("b", range(100, 117), max_tokens=256),
    )
    events = run_traced(engine, tmp_path / "trace.json")
    steps = [event["args"]["event"] for event in spans(events, "step ")]
    assert [step["step"] for step in steps] == list(range(1, 257))
    assert [(step["num_reqs"], step["num_tokens"]) for step in steps] == [(2, 28), *[(2, 2)] * 147, *[(1, 1)] * 108]
    assert sum(step["num_sampled"] for step in steps) == 148 + 256
    for phase in ("schedule", "forward", "sample", "output"):
        assert len(spans(events, phase)) == 256
    tokens = [event["args"] for event in events if event["ph"] == "C" and event["name"] == "tokens"]
    assert tokens == [
        {"prefill": 28, "decode": 0},
        *[{"prefill": 0, "decode": 2}] * 147,
        *[{"prefill": 0, "decode": 1}] * 108,
    ]
    prefills = [(event["args"]["step"], event["args"]["tokens"]) for event in spans(events, "prefill")]
    assert prefills == [(1, 11), (1, 17)]
    assert [event["args"]["tokens"] for event in events if event["ph"] == "E" and "args" in event] == [148, 256]


def test_a_trace_counts_the_tokens_that_came_without_a_step(tmp_path: Path) -> None:
    engine = FakeEngine(max_forced=3, max_num_batched_tokens=8)
    engine.add(make_request("a", range(11), max_tokens=30), make_request("b", range(50, 57), max_tokens=24))
    events = run_traced(engine, tmp_path / "trace.json")
    assert engine.core.stats().num_forced_tokens > 10
    assert sorted(event["args"]["tokens"] for event in events if event["ph"] == "E" and "args" in event) == [24, 30]
    assert sum(event["args"]["tokens"] for event in spans(events, "prefill")) == 11 + 7


def test_a_request_has_a_track_of_queued_prefill_decode_preempted(tmp_path: Path) -> None:
    engine = FakeEngine(num_blocks=10, max_num_batched_tokens=8, max_num_seqs=3)
    engine.add(*(make_request(f"r{i}", [i] * 11, max_tokens=20) for i in range(3)))
    events = run_traced(engine, tmp_path / "trace.json")
    tracks = {
        e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] == 2
    }
    assert set(tracks) == {"r0", "r1", "r2"}
    preempted = {
        event.request_id for event in read_trace(tmp_path / "trace.json") if isinstance(event, RequestPreempted)
    }
    assert preempted
    for request_id, tid in tracks.items():
        names = [e["name"] for e in events if e["pid"] == 2 and e["tid"] == tid and e["ph"] in "BX"]
        order = list(dict.fromkeys(names))
        assert order[:2] == ["queued", "prefill"]
        assert "decode" in order
        assert names.count("prefill") >= 2, "11 tokens in steps of at most 8"
        assert ("preempted" in names) == (request_id in preempted)


def test_a_trace_that_was_cut_off_opens_and_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    engine = FakeEngine()
    engine.add(make_request("a", [1, 2, 3], max_tokens=9))
    trace = TraceFile(path)
    while engine.core.has_work():
        trace.on_events(engine.step().events)
    trace.flush()
    check_format(load(path))
    told = list(read_trace(path))
    assert [event.step for event in told if isinstance(event, StepCompleted)] == list(range(1, 10))
    assert any(isinstance(event, RequestFinished) for event in told)
    half = path.read_bytes()
    path.write_bytes(half[: len(half) - 30])  # in the middle of a line
    assert 0 < len(list(read_trace(path))) < len(told) + 1


def test_a_trace_stops_at_its_bound_and_is_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "trace.json"
    trace = TraceFile(path, max_bytes=4000)
    engine = FakeEngine()
    engine.add(make_request("a", [1, 2, 3], max_tokens=100))
    while engine.core.has_work():
        trace.on_events(engine.step().events, is_idle=True)
    trace.close()
    assert path.stat().st_size < 4200
    assert "4000 bytes" in caplog.text
    check_format(load(path))
    assert path.read_text().endswith("]\n")


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match="is not a trace file"):
        list(read_trace(path))
