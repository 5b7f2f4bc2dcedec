"""Constrained decoding on the real SmolLM2: what comes out fits, and is the same however it came about."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from constrained_requests import MODEL, constrained
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pellucid import LLM, SamplingParams
from pellucid.config import EngineConfig
from pellucid.core.messages import FinishReason
from pellucid.frontend.async_llm import AsyncLLM
from pellucid.frontend.outputs import CompletionOutput
from pellucid.sampling.params import ReasoningParams
from pellucid.structured.errors import ConstraintError

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["kind", "tall", "old"]}, "maxItems": 3},
        "born": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "friend": {"$ref": "#/$defs/friend"},
    },
    "required": ["name", "age", "born"],
    "additionalProperties": False,
    "$defs": {"friend": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}},
                         "required": ["name"], "additionalProperties": False}},
}  # fmt: skip
MESSAGES = [{"role": "user", "content": "Tell me about Bob, in JSON."}]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(MODEL, max_model_len=512, num_kv_blocks=400, max_num_batched_tokens=256)


@pytest.fixture(scope="module")
def prompt(llm: LLM) -> list[int]:
    return llm.tokenizer.encode_chat(MESSAGES, add_generation_prompt=True)


def cases(encode) -> list[SamplingParams]:
    """Every kind, hot enough to stray where it may, and free ones between."""
    think = dict(end_token_ids=tuple(encode("</think>")), start_token_ids=tuple(encode("<think>")))
    more: dict[str, Any] = dict(temperature=1.0, max_tokens=48)
    kinds = [
        dict(json=json.dumps(PERSON), max_tokens=110),
        dict(json_object=True),
        dict(regex=r"\d{3}-[a-z]{2,5}"),
        dict(choice=("Paris", "London", "Rome")),
        dict(grammar='start: "yes" | "no, " /[a-z ]{1,20}/'),
        dict(grammar='root ::= "x" [0-9]? [0-9]? "y"'),
    ]
    params = []
    for seed, kind in enumerate(kinds):
        params += [constrained(**{**more, **kind}, seed=seed), SamplingParams(**more, seed=seed, logprobs=1)]
    reasoning = ReasoningParams(**think, budget=8)
    params.append(constrained(regex="[a-z]{4}", **more, seed=50, reasoning=reasoning))
    params.append(SamplingParams(**more, seed=51, reasoning=reasoning))
    return params


def only(outputs) -> list[CompletionOutput]:
    return [output.outputs[0] for output in outputs]


@pytest.fixture(scope="module")
def params(llm: LLM) -> list[SamplingParams]:
    return cases(lambda text: llm.tokenizer.encode(text, add_special_tokens=False))


@pytest.fixture(scope="module")
def alone(llm: LLM, prompt: list[int], params: list[SamplingParams]) -> list[CompletionOutput]:
    return [only(llm.generate(prompt, p, use_tqdm=False))[0] for p in params]


def test_every_kind_fits(alone: list[CompletionOutput]) -> None:
    person, obj, regex, choice, lark, gbnf = (output.text for output in alone[0:12:2])
    assert [output.error for output in alone] == [None] * len(alone)
    assert alone[0].finish_reason is FinishReason.STOP
    jsonschema.validate(json.loads(person), PERSON, format_checker=jsonschema.FormatChecker())
    assert alone[2].finish_reason is FinishReason.LENGTH or isinstance(json.loads(obj), dict)
    assert re.fullmatch(r"\d{3}-[a-z]{2,5}", regex, re.ASCII)
    assert choice in ("Paris", "London", "Rome")
    assert re.fullmatch("yes|no, [a-z ]{1,20}", lark)
    assert re.fullmatch("x[0-9]{0,2}y", gbnf)
    assert re.search("</think>[a-z]{4}$", alone[12].text)
    assert "</think>" in alone[13].text


def test_in_one_batch_with_free_requests_each_gets_what_it_gets_alone(
    llm: LLM, prompt: list[int], params: list[SamplingParams], alone: list[CompletionOutput]
) -> None:
    assert only(llm.generate([prompt] * len(params), params, use_tqdm=False)) == alone


def test_preempted_again_and_again_it_is_still_the_same(
    prompt: list[int], params: list[SamplingParams], alone: list[CompletionOutput]
) -> None:
    small = LLM(MODEL, max_model_len=256, num_kv_blocks=17, max_num_batched_tokens=256, enable_prefix_caching=False)
    outputs = small.generate([prompt] * len(params), params, use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) > 3
    assert only(outputs) == alone


@pytest.mark.kill
async def test_streamed_and_killed_in_the_middle_it_is_still_the_same(
    prompt: list[int], params: list[SamplingParams], alone: list[CompletionOutput]
) -> None:
    config = EngineConfig(model=MODEL, max_model_len=512, num_kv_blocks=400, max_num_batched_tokens=256)
    llm = await AsyncLLM.from_config(config)
    try:
        begun = asyncio.Semaphore(0)

        async def stream(p: SamplingParams) -> tuple[str, list[int]]:
            text, token_ids = "", []
            async for output in llm.generate(prompt, p):
                for choice in output.outputs:
                    text += choice.text
                    token_ids += choice.token_ids
                begun.release()
            return text, token_ids

        tasks = [asyncio.create_task(stream(p)) for p in params]
        for _ in range(2 * len(params)):
            await begun.acquire()
        assert not all(task.done() for task in tasks)
        pid = llm.client.pid  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGKILL)
        streamed = await asyncio.gather(*tasks)
        assert llm.client.pid != pid  # type: ignore[attr-defined]
    finally:
        await llm.shutdown()
    assert streamed == [(output.text, output.token_ids) for output in alone]


def test_logprobs_are_of_the_unmodified_distribution(llm: LLM, prompt: list[int]) -> None:
    greedy = dict(temperature=0.0, max_tokens=1, logprobs=3)
    [free] = only(llm.generate(prompt, SamplingParams(**greedy), use_tqdm=False))
    [bound] = only(llm.generate(prompt, constrained(regex="[0-9]", **greedy), use_tqdm=False))
    assert free.logprobs is not None
    assert bound.logprobs is not None
    assert bound.token_ids != free.token_ids
    assert bound.logprobs[0].ranks[0] > 1
    assert bound.logprobs[0].token_ids[1:4] == free.logprobs[0].token_ids[:3]
    assert bound.logprobs[0].logprobs[1:4] == free.logprobs[0].logprobs[:3]


def test_min_tokens_and_ignore_eos_do_not_lead_beyond_the_grammar(llm: LLM, prompt: list[int]) -> None:
    for more in (dict(min_tokens=6), dict(ignore_eos=True)):
        [output] = only(
            llm.generate(prompt, constrained(regex="ab", temperature=0.0, max_tokens=8, **more), use_tqdm=False)
        )
        assert (output.text, output.error) == ("ab", None)


def test_one_that_cannot_go_on_ends_alone(llm: LLM, prompt: list[int]) -> None:
    """bad_words and the grammar leave nothing: this request fails, its neighbours do not hear of it."""
    impossible = constrained(regex="b", temperature=0.0, bad_words_token_ids=tuple(
        (i,) for i in range(llm.tokenizer.vocab_size) if llm.tokenizer.token_bytes(i) == b"b"))  # fmt: skip
    fine = constrained(choice=("Paris",), temperature=0.0)
    failed, good = only(llm.generate([prompt] * 2, [impossible, fine], use_tqdm=False))
    assert failed.finish_reason is FinishReason.ERROR
    assert "no token is left" in (failed.error or "")
    assert good.text == "Paris"


def test_offline_a_constraint_that_cannot_be_compiled_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(ConstraintError, match="unclosed group"):
        llm.generate("x", constrained(regex="("), use_tqdm=False)


# schemas of real shape -----------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["id", "name", "value", "items", "kind", "unit price", "größe"])
# Beyond that plane, SmolLM2 has no tokens for some of the bytes.
TEXTS = st.text(st.characters(codec="utf-8", max_codepoint=0xFFFF), max_size=5)
LEAVES = st.one_of(
    st.builds(lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
              st.integers(-1000, 1000), st.integers(0, 5000)),
    st.builds(lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size},
              st.integers(0, 3), st.integers(0, 6)),
    st.builds(lambda values: {"enum": values},
              st.lists(st.one_of(TEXTS, st.integers(-9, 9), st.none()), min_size=1, max_size=4)),
    st.sampled_from([
        {"type": "boolean"}, {"type": "null"}, {"const": "fixed"}, {"type": "string", "format": "date"},
        {"type": "string", "format": "ipv4"}, {"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,3}$"},
        {"type": ["integer", "null"], "minimum": 0, "maximum": 99}, {"$ref": "#/$defs/code"},
    ]),
)  # fmt: skip


def _object(properties: dict[str, Any], num_required: int) -> dict[str, Any]:
    required = list(properties)[:num_required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _containers(children: st.SearchStrategy) -> st.SearchStrategy:
    return st.one_of(
        st.builds(_object, st.dictionaries(NAMES, children, min_size=1, max_size=3), st.integers(0, 3)),
        st.builds(lambda item, low: {"type": "array", "items": item, "minItems": low, "maxItems": low + 1},
                  children, st.integers(0, 2)),
        st.builds(lambda options: {"anyOf": options}, st.lists(children, min_size=1, max_size=2)),
    )  # fmt: skip


SCHEMAS = st.builds(
    lambda schema: {**schema, "$defs": {"code": {"type": "string", "enum": ["A", "B-1"]}}},
    st.builds(_object, st.dictionaries(NAMES, st.recursive(LEAVES, _containers, max_leaves=6), min_size=1, max_size=4),
              st.integers(0, 4)),
)  # fmt: skip


@given(schemas=st.lists(SCHEMAS, min_size=16, max_size=16))
@settings(max_examples=13, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_finished_output_validates_against_its_schema(llm: LLM, prompt: list[int], schemas: list[Any]) -> None:
    params = [
        constrained(json=json.dumps(schema), temperature=1.0, seed=i, max_tokens=120)
        for i, schema in enumerate(schemas)
    ]
    outputs = only(llm.generate([prompt] * len(params), params, use_tqdm=False))
    finished = 0
    for schema, output in zip(schemas, outputs, strict=True):
        assert output.error is None
        if output.finish_reason is FinishReason.STOP:
            finished += 1
            jsonschema.validate(json.loads(output.text), schema, format_checker=jsonschema.FormatChecker())
    assert finished > len(schemas) // 2


@pytest.fixture(autouse=True)
def _whole_pool(llm: LLM) -> Iterator[None]:
    yield
    stats = llm._core.stats()  # type: ignore[attr-defined]
    assert stats.num_free_blocks == stats.num_blocks
