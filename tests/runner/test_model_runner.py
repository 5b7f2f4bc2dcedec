"""A step on a small random model: what comes back, for whom, and what one request's trouble does to the others."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pellucid.config import EngineConfig
from pellucid.core.request import Request
from pellucid.engine.build import LoadedModel, load_model_parts
from pellucid.runner.batch_builder import BatchBuilder
from pellucid.runner.model_runner import ModelRunner
from pellucid.runner.prompt_logprobs import PromptLogprobs
from pellucid.sampling.logits_processors import load_logits_processors
from pellucid.sampling.sampler import Sampler
from tests.models.tiny import VOCAB_SIZE, make_tiny_checkpoint
from tests.runner.helpers import make_request, step

BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory: Path = make_tiny_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3")
    config = EngineConfig(model=str(directory), kernels="torch", dtype="float32", max_model_len=256)
    return load_model_parts(config, lambda _: None)


def runner_of(loaded: LoadedModel, forward=None, max_logits_bytes: int = 64 << 20, processors=()) -> ModelRunner:
    loaded.model.allocate_kv_cache(64, BLOCK_SIZE)
    batches = BatchBuilder(block_size=BLOCK_SIZE, max_num_tokens=256, max_num_reqs=8, max_model_len=256)
    prompt_logprobs = PromptLogprobs(VOCAB_SIZE, max_logits_bytes=max_logits_bytes)
    return ModelRunner(loaded.model, forward or loaded.model, batches, Sampler(VOCAB_SIZE), prompt_logprobs, processors)


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def three(**params) -> list[Request]:
    return [make_request(name, prompt(20, i), [2 * i, 2 * i + 1], **params) for i, name in enumerate("abc")]


def test_a_request_that_reaches_its_end_gets_a_token_and_one_that_does_not_gets_none(loaded):
    runner = runner_of(loaded)
    short, long = make_request("short", prompt(5), [0], logprobs=1), make_request("long", prompt(60), [1, 2, 3, 4])
    first, second = runner.execute(step((short, 0, 5), (long, 0, 40))).requests
    assert len(first.token_ids) == len(first.logprobs) == 1
    assert second.token_ids == []
    assert second.logprobs is None
    assert first.error is second.error is None


def test_a_step_in_which_nobody_samples_works(loaded):
    request = make_request("a", prompt(40), [0, 1, 2], prompt_logprobs=1)
    plain = make_request("b", prompt(40), [3, 4, 5])
    runner = runner_of(loaded)
    (result,) = runner.execute(step((plain, 0, 16))).requests
    assert result.token_ids == []
    (result,) = runner.execute(step((request, 0, 16))).requests
    assert result.token_ids == []
    assert len(result.prompt_logprobs) == 16


def test_a_step_executed_again_gives_the_same_together_and_one_by_one(loaded):
    """What EngineCore does after a step has failed as a whole."""
    runner = runner_of(loaded)
    requests = three(temperature=1.0, logprobs=2, repetition_penalty=1.2)
    shares = [(request, 0, 20) for request in requests]
    first = runner.execute(step(*shares)).requests
    assert list(runner.execute(step(*shares)).requests) == list(first)
    assert [runner.execute(step(share)).requests[0] for share in shares] == list(first)


def test_prompt_logprobs_are_of_each_prompt_token_given_what_precedes_it(loaded):
    request = make_request("a", prompt(50), [0, 1, 2, 3], prompt_logprobs=3)
    (result,) = runner_of(loaded).execute(step((request, 0, 50))).requests
    assert len(result.prompt_logprobs) == 49
    with torch.inference_mode():
        batches = BatchBuilder(block_size=BLOCK_SIZE, max_num_tokens=256, max_num_reqs=8, max_model_len=256)
        batch = batches.build(step((make_request("b", request.token_ids, [4, 5, 6, 7]), 0, 50)))
        everywhere = torch.arange(50, dtype=torch.int32)
        object.__setattr__(batch, "logits_indices", everywhere)
        exact = torch.log_softmax(loaded.model(batch).double(), -1)
    for position, entry in enumerate(result.prompt_logprobs, 1):
        row = exact[position - 1]
        assert entry.token_ids[0] == request.token_ids[position]
        assert entry.logprobs == pytest.approx(row[entry.token_ids].tolist(), abs=1e-5)
        top = row.topk(3).indices.tolist()
        assert [i for i in top if i != entry.token_ids[0]] == entry.token_ids[1:]
        assert entry.ranks[0] == 1 + int((row > row[entry.token_ids[0]]).sum())


@pytest.mark.parametrize("chunks", [(50,), (49, 1), (1, 49), (16, 16, 18)])
@pytest.mark.parametrize("max_logits_bytes", [1, 4 * VOCAB_SIZE * 7, 64 << 20])
def test_prompt_logprobs_have_the_same_bits_however_they_are_cut_up(loaded, chunks, max_logits_bytes):
    def all_of(sizes, limit):
        request = make_request("a", prompt(50), [0, 1, 2, 3], prompt_logprobs=3)
        runner = runner_of(loaded, max_logits_bytes=limit)
        entries, start = [], 0
        for size in sizes:
            (result,) = runner.execute(step((request, start, size))).requests
            entries += result.prompt_logprobs
            start += size
        return entries

    whole = all_of((50,), 64 << 20)
    assert all_of(chunks, max_logits_bytes) == whole
    assert len(whole) == 49


def test_prompt_logprobs_are_not_computed_again_once_they_are_told(loaded):
    request = make_request("a", prompt(20), [0, 1], prompt_logprobs=1)
    runner = runner_of(loaded)
    (first,) = runner.execute(step((request, 0, 20))).requests
    request.add_prompt_logprobs(0, first.prompt_logprobs)
    request.take_prompt_logprobs()
    request.token_ids += first.token_ids
    (second,) = runner.execute(step((request, 20, 1))).requests
    assert second.prompt_logprobs is None


class Poisoned:
    """The model, but the logits of one row of the batch are not numbers."""

    def __init__(self, model, row: int) -> None:
        self._model = model
        self._row = row

    def __call__(self, batch):
        logits = self._model(batch).clone()
        logits[self._row, 7] = math.nan
        return logits


def test_nan_logits_end_that_request_and_its_batch_mates_are_bit_identical(loaded):
    requests = three(temperature=1.0, logprobs=3)
    shares = [(request, 0, 20) for request in requests]
    healthy = runner_of(loaded).execute(step(*shares)).requests
    first, second, third = runner_of(loaded, Poisoned(loaded.model, 1)).execute(step(*shares)).requests
    assert "not finite" in second.error
    assert second.token_ids == []
    assert (first, third) == (healthy[0], healthy[2])


def test_nan_among_the_prompts_logits_ends_that_request_alone(loaded, monkeypatch):
    healthy = loaded.model.compute_logits

    def poisoned(hidden, batch):
        logits = healthy(hidden, batch).clone()
        if len(logits) > 2:  # not those that are sampled from
            logits[0, 0] = math.nan
        return logits

    monkeypatch.setattr(loaded.model, "compute_logits", poisoned)
    asks, does_not = make_request("a", prompt(20), [0, 1], prompt_logprobs=0), make_request("b", prompt(9), [2])
    first, second = runner_of(loaded).execute(step((asks, 0, 20), (does_not, 0, 9))).requests
    assert "not finite" in first.error
    assert second.error is None
    assert len(second.token_ids) == 1


def test_a_failing_processor_ends_that_request_alone(loaded):
    processors = load_logits_processors(["tests.sampling.processors:FailsFor5"], None)
    good, bad = make_request("a", [4, 6], [0]), make_request("b", [5, 6], [1])
    first, second = runner_of(loaded, processors=processors).execute(step((good, 0, 2), (bad, 0, 2))).requests
    assert first.error is None
    assert "FailsFor5 failed: RuntimeError: no fives" in second.error


def test_what_is_kept_for_a_request_goes_when_it_is_finished(loaded):
    runner = runner_of(loaded)
    first, second = make_request("a", prompt(5), [0]), make_request("b", prompt(5), [1])
    runner.execute(step((first, 0, 5)))
    assert list(runner._requests) == ["a"]
    runner.execute(step((second, 0, 5), finished=("a",)))
    assert list(runner._requests) == ["b"]


def test_an_id_that_comes_again_is_another_request(loaded):
    runner = runner_of(loaded)
    runner.execute(step((make_request("a", prompt(5), [0], logit_bias={9: 100.0}), 0, 5)))
    (result,) = runner.execute(step((make_request("a", prompt(5), [0], logit_bias={8: 100.0}), 0, 5))).requests
    assert result.token_ids == [8]


def test_a_warm_up_leaves_nothing_behind_and_calls_no_processor(loaded):
    (recorder,) = load_logits_processors(["tests.sampling.processors:Recorder"], None)
    runner = runner_of(loaded, processors=[recorder])
    request = make_request("a", prompt(20), [0, 1], logprobs=2)
    runner.warm_up(64, BLOCK_SIZE, num_tokens=100, num_reqs=8)
    assert recorder._function.calls == []
    assert runner._requests == {}
    warm = runner.execute(step((request, 0, 20))).requests
    cold = runner_of(loaded).execute(step((request, 0, 20))).requests
    assert list(warm) == list(cold)
