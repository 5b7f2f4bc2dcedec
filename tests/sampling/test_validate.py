"""Every field is checked, in OpenAI's words, and what passes can be sampled with."""

from __future__ import annotations

import math
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.sampling.params import ReasoningParams, SamplingParams, StructuredOutputsParams
from pellucid.sampling.validate import OPENAI_LIMITS, InvalidParameterError, SamplingLimits, validate_sampling_params

V = 1000


def refusal(limits: SamplingLimits | None = None, max_model_len: int | None = None, **kwargs) -> InvalidParameterError:
    with pytest.raises(InvalidParameterError) as caught:
        validate_sampling_params(SamplingParams(**kwargs), V, max_model_len, **({"limits": limits} if limits else {}))
    return caught.value


def test_the_defaults_are_valid_at_every_door():
    validate_sampling_params(SamplingParams())
    validate_sampling_params(SamplingParams(), V, 2048)
    validate_sampling_params(SamplingParams(), V, 2048, limits=OPENAI_LIMITS)


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(temperature=0.0, top_p=1.0, top_k=-1, min_p=1.0, n=128, seed=-(2**63), max_tokens=None),
        dict(seed=2**63 - 1, max_tokens=1, min_tokens=1, logprobs=0, prompt_logprobs=0, top_k=0),
        dict(temperature=100, presence_penalty=-2, frequency_penalty=2.0, repetition_penalty=1e-3),
        dict(stop=("a",) * 64, stop_token_ids=(0, V - 1), logit_bias={0: -100.0, V - 1: 100}, ignore_eos=True),
        dict(reasoning=ReasoningParams(end_token_ids=(1, 2))),
        dict(reasoning=ReasoningParams(end_token_ids=(0,), start_token_ids=(V - 1,), starts_inside=False)),
        dict(allowed_token_ids=(0,), bad_words=("x",), bad_words_token_ids=((0, 1), (2,))),
    ],
)
def test_what_is_at_the_bounds_is_valid(kwargs):
    validate_sampling_params(SamplingParams(**kwargs), V, 2048)


@pytest.mark.parametrize(
    ("kwargs", "param", "code"),
    [
        (dict(n=0), "n", "integer_below_min_value"),
        (dict(n=129), "n", "integer_above_max_value"),
        (dict(n=10**5000), "n", "integer_above_max_value"),
        (dict(n=True), "n", "invalid_type"),
        (dict(n=1.0), "n", "invalid_type"),
        (dict(temperature=-0.1), "temperature", "decimal_below_min_value"),
        (dict(temperature=100.1), "temperature", "decimal_above_max_value"),
        (dict(temperature=10**400), "temperature", "decimal_above_max_value"),
        (dict(temperature="hot"), "temperature", "invalid_type"),
        (dict(temperature=None), "temperature", "invalid_type"),
        (dict(top_p=0.0), "top_p", "decimal_below_min_value"),
        (dict(top_p=1.01), "top_p", "decimal_above_max_value"),
        (dict(top_k=-2), "top_k", "integer_below_min_value"),
        (dict(min_p=-0.01), "min_p", "decimal_below_min_value"),
        (dict(min_p=1.5), "min_p", "decimal_above_max_value"),
        (dict(presence_penalty=2.1), "presence_penalty", "decimal_above_max_value"),
        (dict(frequency_penalty=-2.1), "frequency_penalty", "decimal_below_min_value"),
        (dict(repetition_penalty=0), "repetition_penalty", "decimal_below_min_value"),
        (dict(repetition_penalty=1e-308), "repetition_penalty", "decimal_below_min_value"),
        (dict(seed=2**63), "seed", "integer_above_max_value"),
        (dict(seed=-(2**63) - 1), "seed", "integer_below_min_value"),
        (dict(max_tokens=0), "max_tokens", "integer_below_min_value"),
        (dict(max_tokens=2**31), "max_tokens", "integer_above_max_value"),
        (dict(min_tokens=-1), "min_tokens", "integer_below_min_value"),
        (dict(min_tokens=17), "min_tokens", "integer_above_max_value"),  # max_tokens is 16 by default
        (dict(logprobs=-1), "logprobs", "integer_below_min_value"),
        (dict(logprobs=129), "logprobs", "integer_above_max_value"),
        (dict(prompt_logprobs=129), "prompt_logprobs", "integer_above_max_value"),
        (dict(logprob_token_ids=(1,)), "logprob_token_ids", "invalid_value"),
        (dict(logprob_token_ids=(1, -1), logprobs=0), "logprob_token_ids[1]", "integer_below_min_value"),
        (dict(logprob_token_ids=(1,) * 129, logprobs=0), "logprob_token_ids", "array_above_max_length"),
        (dict(stop=("a",) * 65), "stop", "array_above_max_length"),
        (dict(stop=("a", "")), "stop[1]", "empty_string"),
        (dict(stop=("a" * 4097,)), "stop[0]", "string_above_max_length"),
        (dict(stop=(1,)), "stop[0]", "invalid_type"),
        (dict(stop="text"), "stop", "invalid_type"),
        (dict(stop=("a",), detokenize=False), "stop", "invalid_value"),
        (dict(stop_token_ids=(V,)), "stop_token_ids[0]", "integer_above_max_value"),
        (dict(stop_token_ids=(1, -1)), "stop_token_ids[1]", "integer_below_min_value"),
        (dict(stop_token_ids=(True,)), "stop_token_ids[0]", "invalid_type"),
        (dict(stop_token_ids=tuple(range(1025))), "stop_token_ids", "array_above_max_length"),
        (dict(logit_bias={V: 0.0}), "logit_bias[0]", "integer_above_max_value"),
        (dict(logit_bias={"5": 1.0}), "logit_bias[0]", "invalid_type"),
        (dict(logit_bias={5: 101.0}), "logit_bias[5]", "decimal_above_max_value"),
        (dict(logit_bias={5: float("inf")}), "logit_bias[5]", "invalid_value"),
        (dict(logit_bias=[(1, 2)]), "logit_bias", "invalid_type"),
        (dict(logit_bias=dict.fromkeys(range(4097), 1.0)), "logit_bias", "object_above_max_length"),
        (dict(allowed_token_ids=()), "allowed_token_ids", "empty_array"),
        (dict(allowed_token_ids=(3, V)), "allowed_token_ids[1]", "integer_above_max_value"),
        (dict(allowed_token_ids=(3,), bad_words_token_ids=((3,),)), "allowed_token_ids", "invalid_value"),
        (dict(bad_words=("",)), "bad_words[0]", "empty_string"),
        (dict(bad_words=("x",) * 1025), "bad_words", "array_above_max_length"),
        (dict(bad_words_token_ids=((),)), "bad_words_token_ids[0]", "empty_array"),
        (dict(bad_words_token_ids=((1, V),)), "bad_words_token_ids[0][1]", "integer_above_max_value"),
        (dict(ignore_eos=1), "ignore_eos", "invalid_type"),
        (dict(structured_outputs={"json": "{}"}), "structured_outputs", "invalid_type"),
        (dict(reasoning=ReasoningParams(end_token_ids=())), "reasoning.end_token_ids", "empty_array"),
        (
            dict(reasoning=ReasoningParams(end_token_ids=(1, V))),
            "reasoning.end_token_ids[1]",
            "integer_above_max_value",
        ),
        (
            dict(reasoning=ReasoningParams(end_token_ids=(1,), starts_inside=False)),
            "reasoning.start_token_ids",
            "empty_array",
        ),
        (
            dict(reasoning=ReasoningParams(end_token_ids=(1,), budget=-1)),
            "reasoning.budget",
            "integer_below_min_value",
        ),
        (dict(reasoning={"end_token_ids": (1,)}), "reasoning", "invalid_type"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(kwargs, param, code):
    error = refusal(**kwargs)
    assert (error.param, error.code) == (param, code)
    assert f"'{param}'" in str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_float_must_be_finite(field, value):
    error = refusal(**{field: value})
    assert (error.param, error.code) == (field, "invalid_value")


def test_openais_door_is_stricter_than_the_engine():
    openai = OPENAI_LIMITS
    assert refusal(openai, temperature=2.1).code == "decimal_above_max_value"
    assert refusal(openai, stop=("a",) * 5).code == "array_above_max_length"
    assert refusal(openai, logprobs=21).code == "integer_above_max_value"
    validate_sampling_params(SamplingParams(temperature=2.1, stop=("a",) * 5, logprobs=21), V)


def test_min_tokens_must_be_reachable_when_max_tokens_is_whatever_the_context_leaves():
    assert refusal(max_model_len=100, max_tokens=None, min_tokens=101).param == "min_tokens"
    validate_sampling_params(SamplingParams(max_tokens=None, min_tokens=101), V)


def test_a_constraint_is_never_silently_dropped():
    regex = StructuredOutputsParams(regex="a+")
    assert refusal(structured_outputs=regex).code == "unsupported_parameter"
    able = SamplingLimits(structured_outputs=True)
    validate_sampling_params(SamplingParams(structured_outputs=regex), V, limits=able)
    assert refusal(able, structured_outputs=StructuredOutputsParams()).code == "invalid_value"
    budget = ReasoningParams(end_token_ids=(1,), budget=0)
    assert refusal(reasoning=budget).code == "unsupported_parameter"
    validate_sampling_params(SamplingParams(reasoning=budget), V, limits=able)
    both = StructuredOutputsParams(regex="a+", json_object=True)
    assert "json_object, regex" in str(refusal(able, structured_outputs=both))


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3).map(tuple),
    st.dictionaries(st.integers(), st.floats(), max_size=3),
)


@given(st.sampled_from(SamplingParams.__struct_fields__), JUNK)
def test_no_value_of_any_type_gets_through_or_raises_anything_else(field, value):
    params = SamplingParams(**{field: value})
    error = None
    try:
        validate_sampling_params(params, V, 2048)
    except InvalidParameterError as caught:
        error = caught
    if error is None:  # what passes survives the trip to the engine
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    else:
        assert error.param.startswith(field) or (field, error.param) == ("max_tokens", "min_tokens")


def test_validation_does_not_import_torch():
    code = "import sys, pellucid.sampling.validate, pellucid.sampling.rng; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
