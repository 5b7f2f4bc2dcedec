"""The step loop: no request stops it, and it tells everything that happens."""

from __future__ import annotations

import math

import msgspec
import pytest
from fake_engine import VOCAB_SIZE, FakeEngine, assert_idle, continuation, make_request

from pellucid.core.engine_core import describe_error
from pellucid.core.messages import EngineCoreOutputs, EngineCoreRequest, FinishReason
from pellucid.core.scheduler_output import RunnerOutput, SchedulerOutput
from pellucid.observability.events import (
    PrefixHit,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    RequestScheduled,
    StepCompleted,
    StepStarted,
)
from pellucid.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("prompt", "more", "words"),
    [
        ([], {}, "prompt is empty"),
        ([1, VOCAB_SIZE], {}, f"holds {VOCAB_SIZE}: the vocabulary is 0 to {VOCAB_SIZE - 1}"),
        ([-1], {}, "holds -1"),
        ([1, "two"], {}, "integers only"),
        ([True], {}, "integers only"),
        ([1], {"output_token_ids": [VOCAB_SIZE]}, "output_token_ids"),
        ([1], {"temperature": math.nan}, "temperature"),
        ([1], {"stop_token_ids": (VOCAB_SIZE,)}, "stop_token_ids"),
        ([1], {"logit_bias": {-1: 1.0}}, "logit_bias"),
        ([1], {"deadline": math.nan}, "deadline"),
        ([1], {"arrival_time": math.inf}, "arrival_time"),
        ([1], {"n": 2}, "one continuation"),
        ([1], {"seed": None}, "seed"),
        ([1] * 300, {}, "max_model_len=200"),
        ([1], {"max_tokens": 150}, "KV blocks"),
    ],
)
def test_an_invalid_request_gets_an_error_output_and_the_others_go_on(
    prompt: list[int], more: dict[str, object], words: str
) -> None:
    engine = FakeEngine(num_blocks=30)
    good = make_request("good", [1, 2, 3])
    engine.add(good, make_request("bad", prompt, **more))
    outputs = engine.step()
    (refusal,) = (output for output in outputs.outputs if output.request_id == "bad")
    assert refusal.finish_reason is FinishReason.ERROR
    assert refusal.error is not None
    assert words in refusal.error
    (event,) = (event for event in outputs.events if isinstance(event, RequestRefused))
    assert (event.request_id, event.reason) == ("bad", refusal.error)
    engine.run()
    assert engine.tokens["good"] == continuation(good)
    assert_idle(engine)


def test_a_second_request_with_an_id_in_use_does_not_disturb_the_first() -> None:
    engine = FakeEngine()
    first = make_request("r", [1, 2, 3], max_tokens=4)
    engine.add(first)
    engine.step()
    engine.core.add_request(make_request("r", [9, 9]))
    engine.run()
    assert engine.tokens["r"] == continuation(first)
    assert [event.request_id for event in engine.events if isinstance(event, RequestRefused)] == ["r"]


def test_a_refused_request_that_is_aborted_says_no_more() -> None:
    engine = FakeEngine()
    engine.core.add_request(make_request("r", []))
    engine.core.abort_requests(["r"])
    assert engine.step().outputs == []


def poison(*names: str):  # type: ignore[no-untyped-def]
    def before_step(scheduled: SchedulerOutput) -> None:
        broken_by = [share.request.request_id for share in scheduled.requests if share.request.request_id in names]
        if broken_by:
            raise RuntimeError(f"<object at 0x7f00deadbeef> broke:\n {broken_by}")

    return before_step


def test_an_exception_in_a_step_ends_the_request_that_caused_it_and_no_other() -> None:
    engine = FakeEngine(before_step=poison("bad"))
    requests = [make_request(name, [5, 5, 5, 5, i]) for i, name in enumerate(["a", "bad", "b"])]
    engine.add(*requests)
    engine.step()
    assert engine.last["bad"].error == "the model step failed: RuntimeError: <object at 0x…> broke: ['bad']"
    engine.run()
    for request in (requests[0], requests[2]):
        assert engine.tokens[request.request_id] == continuation(request)
    assert_idle(engine)


def test_when_every_request_breaks_alone_all_end_with_an_error_and_the_engine_goes_on() -> None:
    engine = FakeEngine(before_step=poison("a", "b"))
    engine.add(make_request("a", [1]), make_request("b", [2]))
    engine.step()
    assert {name: output.finish_reason for name, output in engine.last.items()} == dict.fromkeys(
        "ab", FinishReason.ERROR
    )
    assert engine.core.stats().num_cached_blocks == 0
    later = make_request("later", [1])
    engine.add(later)
    engine.run()
    assert engine.tokens["later"] == continuation(later)
    assert_idle(engine)


def test_a_runner_that_answers_for_too_few_requests_is_an_error_not_a_mix_up() -> None:
    engine = FakeEngine()
    execute = engine.runner.execute

    def one_too_few(scheduled: SchedulerOutput) -> RunnerOutput:
        output = execute(scheduled)
        return RunnerOutput(output.requests[:-1]) if len(output.requests) > 1 else output

    engine.runner.execute = one_too_few  # type: ignore[method-assign]
    requests = [make_request(name, [i]) for i, name in enumerate("abc")]
    engine.add(*requests)
    engine.run()
    for request in requests:
        assert engine.tokens[request.request_id] == continuation(request)


def test_a_runner_that_returns_no_token_where_one_is_due_ends_that_request() -> None:
    engine = FakeEngine()
    execute = engine.runner.execute
    engine.runner.execute = lambda scheduled: RunnerOutput(  # type: ignore[method-assign]
        [msgspec.structs.replace(result, token_ids=[]) for result in execute(scheduled).requests]
    )
    engine.add(make_request("r", [1]))
    engine.run(max_steps=3)
    assert engine.last["r"].error == "the model runner returned no token"
    assert_idle(engine)


def test_a_step_tells_what_it_did_in_order() -> None:
    engine = FakeEngine()
    engine.add(make_request("r", [1, 2, 3], max_tokens=1))
    events = engine.step().events
    assert [type(event) for event in events] == [
        RequestArrived, PrefixHit, RequestScheduled, StepStarted, RequestFinished, StepCompleted,
    ]  # fmt: skip
    step = events[-1]
    assert isinstance(step, StepCompleted)
    assert (step.step, step.num_reqs, step.num_tokens, step.num_sampled) == (1, 1, 3, 1)
    assert min(step.schedule_s, step.forward_s, step.output_s) > 0
    assert engine.step().events == [], "each event is told once"


def test_a_step_message_crosses_a_process_boundary_unchanged() -> None:
    engine = FakeEngine()
    for kind in ("a", "b"):
        engine.add(make_request(kind, [1, 2, 3, 4], max_tokens=2, prompt_logprobs=0))
    engine.add(make_request("refused", []))
    while engine.core.has_work():
        outputs = engine.step()
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(outputs), type=EngineCoreOutputs) == outputs


def test_a_request_is_a_value_that_survives_the_wire() -> None:
    request = EngineCoreRequest(
        request_id="r",
        prompt_token_ids=[1],
        sampling_params=SamplingParams(seed=3, logit_bias={5: -1.0}, stop=("x",)),
        deadline=3.5,
        priority=-1,
        cache_salt="s",
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=EngineCoreRequest) == request


def test_errors_are_one_line_without_addresses() -> None:
    assert describe_error(ValueError("")) == "the model step failed: ValueError"
    text = describe_error(KeyError("<Tensor at 0xDEADBEEF>\n  line two" + "x" * 1000))
    assert "0xDEADBEEF" not in text
    assert "\n" not in text
    assert len(text) < 400
