"""Operator's processors: loaded by name, called per request, and never able to hurt another request."""

from __future__ import annotations

import pytest
import torch

from pellucid.sampling.logits_processors import LogitsProcessor, load_logits_processors
from pellucid.sampling.sampler import Sampler
from tests.sampling import processors
from tests.sampling.helpers import V, random_logits, state

HERE = "tests.sampling.processors"


def test_a_processor_is_constructed_once_with_the_tokenizer():
    tokenizer = object()
    processors.Recorder.constructed_with.clear()
    load_logits_processors([f"{HERE}:Recorder"], tokenizer)
    assert processors.Recorder.constructed_with == [tokenizer]


def test_a_processor_is_called_with_prompt_output_and_logits():
    (recorder,) = load_logits_processors([f"{HERE}:Recorder"], None)
    request = state([4, 5], [6], [recorder])
    Sampler(V).sample(random_logits(), [request])
    request.token_ids.append(8)
    Sampler(V).sample(random_logits(), [request])
    made = recorder._function.calls
    assert [call[0][:-1] for call in made] == [[4, 5], [4, 5]]
    assert [call[1][:-1] for call in made] == [[6], [6, 8]]
    assert made[0][2:] == ((V,), torch.float32)
    assert request.token_ids == [4, 5, 6, 8]


@pytest.mark.parametrize("name", ["Only7", "InPlace7"])
def test_what_a_processor_returns_is_sampled_from_and_logprobs_stay_the_models(name):
    loaded = load_logits_processors([f"{HERE}:{name}"], None)
    logits = random_logits(2)
    before = logits.clone()
    with_it, without = Sampler(V).sample(logits, [state(processors=loaded, logprobs=1), state(logprobs=1)])
    assert with_it.token_id == 7
    assert without.token_id == int(logits[1].argmax())
    assert torch.equal(logits, before)
    expected = torch.log_softmax(logits[0].double(), -1)[7].item()
    assert with_it.logprobs.logprobs[0] == pytest.approx(expected, abs=1e-5)


def test_a_processor_cannot_bring_back_what_the_request_forbids():
    loaded = load_logits_processors([f"{HERE}:InPlace7"], None)
    (sampled,) = Sampler(V).sample(random_logits(), [state(processors=loaded, allowed_token_ids=(1, 2))])
    assert sampled.token_id in (1, 2)


def test_an_exception_ends_that_request_only():
    loaded = load_logits_processors([f"{HERE}:FailsFor5"], None)
    logits = random_logits(3)
    states = [state([1], processors=loaded), state([5], processors=loaded), state([2], processors=loaded)]
    first, second, third = Sampler(V).sample(logits, states)
    assert second.error == f"logits processor {HERE}:FailsFor5 failed: RuntimeError: no fives"
    assert [first.token_id, third.token_id] == logits[[0, 2]].argmax(-1).tolist()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "returned None instead of a tensor of shape [200]"),
        ([1.0] * V, "returned a list instead of a tensor"),
        (torch.zeros(V + 1), "returned a tensor of shape [201] and type torch.float32 instead of shape [200]"),
        (torch.zeros(1, V), "returned a tensor of shape [1, 200]"),
        (torch.zeros(V, dtype=torch.int64), "torch.int64"),
        (torch.full((V,), float("nan")), "not finite"),
        (torch.full((V,), float("inf")), "not finite"),
        (torch.full((V,), -float("inf")), "no token is left"),
    ],
)
def test_a_wrong_result_is_an_error_that_names_the_processor(value, words):
    processor = LogitsProcessor("my.module:Mine", processors.Returns(value))
    bad, good = Sampler(V).sample(random_logits(2), [state(processors=[processor]), state()])
    assert words in bad.error
    if not isinstance(value, torch.Tensor) or value.shape != (V,):
        assert "my.module:Mine" in bad.error
    assert good.error is None


def test_a_bfloat16_result_is_fine():
    processor = LogitsProcessor("m:P", processors.Returns(torch.eye(V, dtype=torch.bfloat16)[9]))
    assert Sampler(V).sample(random_logits(), [state(processors=[processor])])[0].token_id == 9


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nomodule", "expected package.module:Class"),
        ("pellucid.nothing_here:Class", "cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:Nothing", "cannot be imported: AttributeError"),
        (f"{HERE}:A_NUMBER", "is a int, not a class"),
        (f"{HERE}:CannotBeMade", "cannot be constructed with the tokenizer: OSError: no such dictionary"),
        (f"{HERE}:NotCallable", "has no __call__"),
    ],
)
def test_a_processor_that_cannot_be_loaded_stops_the_start_with_its_name(name, words):
    with pytest.raises(ValueError, match="logits processor") as caught:
        load_logits_processors([name], None)
    assert name in str(caught.value)
    assert words in str(caught.value)
