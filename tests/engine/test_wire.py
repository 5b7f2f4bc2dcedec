"""Only whole frames of our own structs come through, however the bytes arrive."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.messages import (
    AbortRequests,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineHeartbeat,
    FinishReason,
    Shutdown,
    TokenLogprob,
)
from pellucid.engine import wire
from pellucid.engine.wire import WireError, encode_frame, engine_side_reader, front_end_side_reader
from pellucid.sampling.params import SamplingParams

requests = st.builds(
    EngineCoreRequest,
    request_id=st.text(max_size=5),
    prompt_token_ids=st.lists(st.integers(0, 2**31), min_size=1, max_size=5),
    sampling_params=st.builds(
        SamplingParams,
        seed=st.integers(-(2**63), 2**63 - 1),
        logit_bias=st.none() | st.dictionaries(st.integers(0, 99), st.floats(-9, 9), max_size=2),
        stop=st.lists(st.text(min_size=1, max_size=3), max_size=2).map(tuple),
    ),
    output_token_ids=st.lists(st.integers(0, 2**31), max_size=3),
)
to_engine = st.one_of(
    requests, st.builds(AbortRequests, request_ids=st.lists(st.text(max_size=3))), st.just(Shutdown())
)


@given(st.lists(to_engine, max_size=5), st.lists(st.integers(1, 50), min_size=1))
def test_messages_come_out_as_they_went_in_however_the_bytes_are_cut(messages: list, cuts: list[int]) -> None:
    data = b"".join(map(encode_frame, messages))
    reader, received, step = engine_side_reader(), [], 0
    while data:
        size = cuts[step % len(cuts)]
        received += reader.feed(data[:size])
        data, step = data[size:], step + 1
    assert received == messages


def test_what_the_engine_says_comes_through_whole() -> None:
    outputs = EngineCoreOutputs(
        outputs=[
            EngineCoreOutput(
                request_id="r",
                new_token_ids=[1],
                logprobs=[TokenLogprob([1, 2], [-0.5, -1.0], [1, 2])],
                finish_reason=FinishReason.STOP,
                stop_reason="x",
            )
        ]
    )
    messages = [outputs, EngineHeartbeat(step=3, step_running_s=0.5)]
    assert list(front_end_side_reader().feed(b"".join(map(encode_frame, messages)))) == messages


@given(st.binary(max_size=60))
def test_a_body_that_is_no_message_is_an_error_and_nothing_else(body: bytes) -> None:
    frame = struct.pack(">I", len(body)) + body
    with pytest.raises(WireError):
        list(engine_side_reader().feed(frame))


def test_a_message_for_the_other_side_is_refused() -> None:
    with pytest.raises(WireError):
        list(engine_side_reader().feed(encode_frame(EngineHeartbeat(step=1, step_running_s=0.0))))
    with pytest.raises(WireError):
        list(front_end_side_reader().feed(encode_frame(Shutdown())))


def test_a_length_beyond_the_bound_is_refused_before_anything_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WireError, match="bound"):
        list(engine_side_reader().feed(struct.pack(">I", wire.MAX_FRAME_BYTES + 1)))
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 100)
    with pytest.raises(WireError, match="larger than a frame"):
        encode_frame(AbortRequests(request_ids=["x" * 200]))


def test_the_wire_knows_data_only() -> None:
    with pytest.raises(WireError):
        list(engine_side_reader().feed(_frame({"type": "configure", "config": {"model": 3}})))
    with pytest.raises(WireError):
        list(engine_side_reader().feed(_frame({"type": "exec", "code": "1"})))


def _frame(value: object) -> bytes:
    body = msgspec.msgpack.encode(value)
    return struct.pack(">I", len(body)) + body
