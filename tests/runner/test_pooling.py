"""Vectors of prompts: transformers' values, and the same bits whatever the request is computed beside and in."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pellucid.core.messages import EngineCoreRequest, FinishReason, Pooling
from pellucid.engine.build import LoadedModel
from pellucid.runner.pooling import Pooler
from tests.models.tiny import VOCAB_SIZE, make_tiny_checkpoint
from tests.runner.equivalence import Run, assert_same_bits, engine, request, run, run_alone
from tests.runner.helpers import make_request, step
from tests.runner.test_equivalence import load, needs_native

LENGTHS = (94, 1, 94, 130, 16, 95)


def prompts() -> list[list[int]]:
    """Every other one begins with the same 40 tokens, if it is as long."""
    rng = random.Random(2)
    shared = [rng.randrange(3, VOCAB_SIZE) for _ in range(40)]
    found = [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]
    return [shared[: len(prompt)] + prompt[40:] if i % 2 else prompt for i, prompt in enumerate(found)]


def workload() -> list[EngineCoreRequest]:
    """Of each prompt the last state, the mean, and (beside them, in the same steps) a continuation."""
    values = []
    for i, prompt in enumerate(prompts()):
        for pooling in ("last", "mean", None):
            value = request(f"{i}-{pooling}", prompt, max_tokens=5, logprobs=1)
            values.append(msgspec.structs.replace(value, pooling=pooling))
    return values


ENGINES = [
    pytest.param(("llama3", "torch", {"dtype": "float32", "num_threads": 1}), id="llama3-torch-float32"),
    pytest.param(("gemma3", "torch", {"dtype": "bfloat16", "num_threads": 1}), id="gemma3-torch-bfloat16"),
    pytest.param(("qwen3", "cpu", {}), id="qwen3-cpu", marks=needs_native),
    pytest.param(("qwen3", "cpu", {"quantization": "int8"}), id="qwen3-cpu-int8", marks=needs_native),
]


@pytest.fixture(scope="module", params=ENGINES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    model, backend, changed = request.param
    return load(tmp_path_factory.mktemp(model), model, backend, **changed)


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> Run:
    found = run_alone(engine(loaded), workload())
    for request_id, result in found.results.items():
        assert (result.pooled is None) == request_id.endswith("None")
        if result.pooled is not None:
            assert (result.finish_reason, result.token_ids) == (FinishReason.STOP, [])
            assert len(result.pooled) == 4 * loaded.model.config.hidden_size
    return found


def test_batched_with_generation_gives_the_bits_of_alone(loaded: LoadedModel, alone: Run) -> None:
    batched = run(engine(loaded), workload())
    assert batched.num_steps < alone.num_steps / 3
    assert_same_bits(batched, alone)


def test_chunked_gives_the_bits_of_alone(loaded: LoadedModel, alone: Run) -> None:
    assert_same_bits(run(engine(loaded, max_num_batched_tokens=37), workload()), alone)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_preempted_in_the_middle_of_a_prompt_gives_the_bits_of_alone(loaded: LoadedModel, pooling: Pooling) -> None:
    """The first request grows until the pool is full, while the long prompt is computed 15 tokens a step."""
    rng = random.Random(3)
    short, long = ([rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (94, 400))
    values = [
        request("grows", short, max_tokens=40, ignore_eos=True, logprobs=1),
        msgspec.structs.replace(request("pooled", long), pooling=pooling),
    ]
    pressed = run(engine(loaded, num_kv_blocks=32, max_num_batched_tokens=16), values)
    assert pressed.stats.num_preemptions > 0
    assert_same_bits(pressed, run_alone(engine(loaded), values))


def test_beside_a_prefix_cache_gives_the_bits_of_alone(loaded: LoadedModel, alone: Run) -> None:
    """The last state comes from a cached prefix; of a mean every position is computed, for the cache has no states."""
    core = engine(loaded, enable_prefix_caching=True)
    assert_same_bits(run(core, workload()), alone)
    for pooling, expects_hits in (("last", True), ("mean", False)):
        again = [value for value in workload() if value.pooling == pooling]
        found = run(core, again)
        assert (found.num_cached_tokens > 0) == expects_hits
        for value in again:
            assert found.results[value.request_id] == alone.results[value.request_id]


@pytest.mark.parametrize("backend", ["torch", pytest.param("cpu", marks=needs_native)])
@pytest.mark.parametrize("model", ["llama3", "gemma3"])
def test_the_values_are_transformers(tmp_path: Path, model: str, backend: str) -> None:
    directory = make_tiny_checkpoint(tmp_path, model)
    found = run(engine(load(tmp_path, model, backend, dtype="float32", num_threads=1)), workload())
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    for i, prompt in enumerate(prompts()):
        with torch.inference_mode():
            states = reference.model(torch.tensor([prompt])).last_hidden_state[0].numpy()
        for pooling, expected in (("last", states[-1]), ("mean", states.astype(np.float64).mean(0))):
            got = np.frombuffer(found.results[f"{i}-{pooling}"].pooled or b"", "<f4")
            np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


class _Rows:
    """A model whose final norm is the identity."""

    def final_hidden(self, hidden: torch.Tensor, batch: object) -> torch.Tensor:
        return hidden[batch.logits_indices]  # type: ignore[attr-defined]


def test_a_step_that_is_executed_again_finds_the_sums_as_they_were() -> None:
    """A batch that fails is computed again, one request at a time: what was added then must not be added twice."""
    pooler, value = Pooler(), make_request("a", [1, 2, 3, 4], blocks=[0])
    value.pooling = "mean"
    hidden = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    first, second = step((value, 0, 2)), step((value, 2, 2))
    from pellucid.runner.batch_builder import BatchBuilder

    builder = BatchBuilder(block_size=16, max_num_tokens=8, max_num_reqs=2, max_model_len=16)

    class Breaks(_Rows):
        def final_hidden(self, hidden: torch.Tensor, batch: object) -> torch.Tensor:
            raise RuntimeError("broken")

    assert pooler(_Rows(), hidden[:2], builder.build(first), first.requests) == {}  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="broken"):
        pooler(Breaks(), hidden[2:], builder.build(second), second.requests)  # type: ignore[arg-type]
    for _ in range(2):  # broken by what came after the sums, the second time
        pooled = pooler(_Rows(), hidden[2:], builder.build(second), second.requests)  # type: ignore[arg-type]
        assert np.frombuffer(pooled[0], "<f4").tolist() == [2.5]
    pooler.forget(["a"])
    with pytest.raises(RuntimeError, match="first 2 tokens"):
        pooler(_Rows(), hidden[2:], builder.build(second), second.requests)  # type: ignore[arg-type]
