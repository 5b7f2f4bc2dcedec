"""Tokens that a constraint leaves no choice about come in one step, and are those that a step each would have given.

Every request here is run with each token in a step of its own, and then with the forced ones at once: alone, in a mixed
batch, with steps too small for them, preempted, continued from any point, and with its prefix cached.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest

from pellucid import LLM
from pellucid.config import EngineConfig
from pellucid.core.engine_core import EngineCore
from pellucid.core.messages import EngineCoreRequest, FinishReason
from pellucid.core.scheduler_output import RunnerOutput, SchedulerOutput
from pellucid.engine.build import LoadedModel, load_model_parts
from pellucid.frontend.tokenizer import load_tokenizer
from pellucid.observability.events import StepCompleted, TokensSampled
from pellucid.sampling.params import ReasoningParams, SamplingParams, StructuredOutputsParams
from tests.models.tiny import END_OF_TEXT_ID, TURN_END_ID, VOCAB_SIZE, make_tiny_checkpoint
from tests.runner.equivalence import Run, engine, run, run_alone

PERSON = {
    "type": "object",
    "properties": {
        "kind": {"const": "the miller"},
        "sacks": {"type": "integer", "minimum": 0, "maximum": 99},
        "day": {"enum": ["morning", "evening", "mosquito"]},
        "where": {"type": "object", "properties": {"river": {"type": "string", "maxLength": 4}}, "required": ["river"],
                  "additionalProperties": False},
    },
    "required": ["kind", "sacks", "day", "where"],
    "additionalProperties": False,
}  # fmt: skip
CONSTRAINTS: list[dict[str, Any]] = [
    dict(json=json.dumps(PERSON)),
    dict(json=json.dumps({"type": "array", "items": {"enum": ["wheel", "stones"]}, "minItems": 2, "maxItems": 5})),
    dict(choice=("Paris", "London", "Rome")),
    dict(regex="The capital of [A-Z][a-z]{2,4} is [a-z]+ and that is (all|everything)"),
    dict(grammar='start: "yes, " /[0-9]{2}/ " sacks for the road"'),
]
# What else a request asks for, each with every constraint.
MORE: list[dict[str, Any]] = [
    dict(temperature=0.0),
    dict(temperature=1.0),
    dict(temperature=1.4, top_p=0.95, top_k=40, min_p=0.001),
    dict(temperature=1.0, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.7),
    dict(temperature=0.0, logit_bias={9: 3.0, 40: -100.0, 50: -20.0}),
    dict(temperature=1.0, min_tokens=45),
    dict(temperature=1.0, ignore_eos=True),
    dict(temperature=1.0, stop_token_ids=tuple(range(80, 90))),
    dict(temperature=1.0, prompt_logprobs=1),
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory = make_tiny_checkpoint(tmp_path_factory.mktemp("model"), "qwen3")
    config = EngineConfig(model=str(directory), max_num_seqs=16, num_kv_blocks=400, max_model_len=256)
    return load_model_parts(config, lambda _: None)


@pytest.fixture(scope="module")
def encode(loaded: LoadedModel) -> Any:
    tokenizer = load_tokenizer(loaded.files)
    return lambda text: tuple(tokenizer.encode(text, add_special_tokens=False))


@pytest.fixture(scope="module")
def requests(encode: Any) -> list[EngineCoreRequest]:
    think = ReasoningParams(end_token_ids=encode("</think>"), start_token_ids=encode("<think>"), budget=3)
    begins = msgspec.structs.replace(think, starts_inside=False)
    params: list[dict[str, Any]] = [{**c, **more} for c, more in itertools.product(CONSTRAINTS, MORE)]
    params += [{**CONSTRAINTS[0], "reasoning": think}, {**CONSTRAINTS[3], "reasoning": begins}, {"reasoning": think}]
    params += [{**CONSTRAINTS[0], "temperature": 0.0, "max_tokens": n} for n in range(1, 30)]
    params += [{"temperature": 1.0, "logprobs": 1}, {}]  # free ones between
    prompt = encode("What is the capital of France? <|im_start|>assistant ")
    return [_request(str(i), [*prompt, *range(30, 30 + i % 11)], i, **values) for i, values in enumerate(params)]


def _request(request_id: str, prompt: list[int], seed: int, **values: Any) -> EngineCoreRequest:
    kinds = StructuredOutputsParams.__struct_fields__
    constraint = {name: values.pop(name) for name in list(values) if name in kinds}
    if constraint:
        values["structured_outputs"] = StructuredOutputsParams(**constraint)
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(**{"seed": seed, "max_tokens": 60, "temperature": 0.8, **values}),
        eos_token_ids=(TURN_END_ID, END_OF_TEXT_ID),
    )


def step_by_step(core: EngineCore) -> EngineCore:
    core.runner.max_forced_tokens = 0  # type: ignore[attr-defined]
    return core


def outcome(found: Run) -> dict[str, Any]:
    return {name: (r.token_ids, r.finish_reason, r.stop_reason, r.prompt_logprobs) for name, r in found.results.items()}


@pytest.fixture(scope="module")
def slow(loaded: LoadedModel, requests: list[EngineCoreRequest]) -> Run:
    found = run_alone(step_by_step(engine(loaded)), requests)
    reasons = [result.finish_reason for result in found.results.values()]
    assert reasons.count(FinishReason.STOP) > 20
    assert reasons.count(FinishReason.LENGTH) > 20
    return found


def test_each_forced_token_saves_a_step_and_changes_nothing(loaded, requests, slow):
    num_forced = 0
    for value in requests:
        core = engine(loaded)
        fast = run(core, [value])
        assert fast.results[value.request_id] == slow.results[value.request_id], value.sampling_params
        forced = fast.stats.num_forced_tokens
        assert fast.num_steps - _waiting_steps(fast) == len(fast.results[value.request_id].token_ids) - forced
        num_forced += forced
    num_tokens = sum(len(result.token_ids) for result in slow.results.values())
    assert num_forced > num_tokens / 3


def _waiting_steps(found: Run) -> int:
    """Those in which nothing was computed: the grammar was not compiled yet."""
    return found.num_steps - found.stats.step


def test_in_a_mixed_batch_they_are_the_same(loaded, requests, slow):
    fast = run(engine(loaded), requests)
    assert fast.stats.num_forced_tokens > 0
    assert outcome(fast) == outcome(slow)


@pytest.mark.parametrize("max_num_batched_tokens", [4, 19])
def test_in_steps_too_small_for_them_they_are_the_same(loaded, requests, slow, max_num_batched_tokens):
    fast = run(engine(loaded, max_num_batched_tokens=max_num_batched_tokens), requests)
    assert fast.stats.num_forced_tokens > 0
    assert outcome(fast) == outcome(slow)


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_preempted_again_and_again_they_are_the_same(loaded, requests, slow, enable_prefix_caching):
    core = engine(loaded, num_kv_blocks=24, enable_prefix_caching=enable_prefix_caching)
    fast = run(core, requests)
    assert fast.stats.num_preemptions > 10
    assert outcome(fast) == outcome(slow)
    if enable_prefix_caching:
        assert fast.num_cached_tokens > 0


@pytest.mark.parametrize("num_told", [1, 2, 5, 9, 14])
def test_continued_from_any_point_they_are_the_same(loaded, requests, slow, num_told):
    """Also from the middle of what came at once: an engine that died had told all of it, another front end part."""
    rest = [
        msgspec.structs.replace(value, output_token_ids=slow.results[value.request_id].token_ids[:num_told])
        for value in requests
        if len(slow.results[value.request_id].token_ids) > num_told
    ]
    resumed = run(engine(loaded), rest)
    for value in rest:
        assert resumed.results[value.request_id].token_ids == slow.results[value.request_id].token_ids


class Twice:
    """Every step is made two times, and it is the second one that counts: as when it had failed at its very end."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def execute(self, scheduled: SchedulerOutput) -> RunnerOutput:
        first = self._runner.execute(scheduled)
        second = self._runner.execute(scheduled)
        assert list(first.requests) == list(second.requests)
        return second


def test_a_step_that_is_made_again_gives_them_again(loaded, requests, slow):
    core = engine(loaded)
    core.runner = Twice(core.runner)
    assert outcome(run(core, requests)) == outcome(slow)


@pytest.mark.parametrize(
    "more", [dict(logprobs=2), dict(bad_words_token_ids=((3, 3),)), dict(allowed_token_ids=tuple(range(VOCAB_SIZE)))]
)
def test_who_needs_every_logit_gets_each_token_by_itself(loaded, requests, slow, more):
    asked = [
        msgspec.structs.replace(value, sampling_params=msgspec.structs.replace(value.sampling_params, **more))
        for value in requests[: len(CONSTRAINTS) * len(MORE)]
    ]
    found = run(engine(loaded), asked)
    assert found.stats.num_forced_tokens == 0
    for value in asked:
        result = found.results[value.request_id]
        assert result.token_ids == slow.results[value.request_id].token_ids
        assert len(result.logprobs) == (len(result.token_ids) if "logprobs" in more else 0)


@pytest.mark.parametrize("max_forced", [0, 32])
def test_a_forced_token_that_would_end_too_early_is_an_error_as_it_is_step_by_step(loaded, encode, max_forced):
    """min_tokens keeps stop tokens out; where the constraint leaves nothing else the request can't go on."""
    core = engine(loaded)
    core.runner.max_forced_tokens = max_forced
    stop = encode("b")
    core.add_request(_request("r", [5, 6, 7], 0, regex="a(a|b)b", stop_token_ids=stop, min_tokens=4, temperature=0.0))
    outputs = []
    while core.has_work():
        outputs += core.step().outputs
    assert [token for output in outputs for token in output.new_token_ids] == [*encode("a"), *encode("a")]
    assert outputs[-1].finish_reason is FinishReason.ERROR
    assert "no token is left" in (outputs[-1].error or "")


def test_a_reader_gets_the_same_text_and_the_same_stop(loaded):
    """With all that the front end does to tokens: stop strings within a run, several continuations, byte by byte."""
    llm = LLM(loaded.config.model, max_model_len=256, num_kv_blocks=64)
    said = StructuredOutputsParams(regex="The mill[a-z]? stood where the river bends, 🙂 and the wheel turned")
    for more in (
        dict(stop=("stood wh",)),
        dict(stop=("ends, 🙂",), include_stop_str_in_output=True),
        dict(stop=("m", "wheel"), min_tokens=40),
        dict(n=3),
        dict(max_tokens=7),
    ):
        params = SamplingParams(**{"structured_outputs": said, "max_tokens": 150, "seed": 3, **more})
        [jumped] = llm.generate([[5, 6, 7]], params, use_tqdm=False)
        [each] = llm.generate([[5, 6, 7]], msgspec.structs.replace(params, logprobs=0), use_tqdm=False)
        for fast, slow in zip(jumped.outputs, each.outputs, strict=True):
            told = (fast.text, fast.token_ids, fast.finish_reason, fast.stop_reason)
            assert told == (slow.text, slow.token_ids, slow.finish_reason, slow.stop_reason)
    assert llm._core.stats().num_forced_tokens > 50


def test_a_choice_of_one_token_and_its_end_are_one_step(loaded, encode):
    found = run(engine(loaded), [_request("r", [5, 6, 7], 0, choice=("a", "b"))])
    assert found.stats.step == 1
    assert found.results["r"].token_ids in ([*encode("a"), TURN_END_ID], [*encode("b"), TURN_END_ID])
    assert found.results["r"].finish_reason is FinishReason.STOP


def test_the_events_say_which_tokens_were_forced(loaded, requests):
    core = engine(loaded)
    events: list[Any] = []
    core.bus.subscribe(events.append)
    run(core, requests[:1])
    told = {event.step: event for event in events if isinstance(event, TokensSampled)}
    steps = [event for event in events if isinstance(event, StepCompleted)]
    indexes = [index for event in told.values() for index in event.indexes]
    assert indexes == list(range(len(indexes)))
    for step in steps:
        forced = told[step.step].forced if step.step in told else []
        assert forced == ([False] + [True] * step.num_forced if step.num_sampled else [])
        assert len(forced) == step.num_sampled
    assert sum(step.num_forced for step in steps) == core.stats().num_forced_tokens > 0
