"""The same request gives the same bits, whatever it is computed with and however it is cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from paged_run import PagedRequest, PagedRun
from tiny import VOCAB_SIZE, make_tiny_checkpoint

from pellucid.kernels.torch_kernels import TorchKernels
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.resolve import resolve_model
from pellucid.loader.weights import iter_weights
from pellucid.models.load import load_model
from pellucid.models.model import Model

LENGTH = 300  # two tiles of keys
CHUNKINGS = (
    [48] * 6 + [12],
    [1] * 20 + [255, 25],
    [256, 1, 43],
    [7, 64, 65, 63, 1, 100],
)


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return getattr(torch, request.param)


@pytest.fixture(scope="module", params=["llama3", "qwen2", "gemma3"])
def model(request: pytest.FixtureRequest, dtype: torch.dtype, tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = make_tiny_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    return load(directory, dtype)


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def load(directory: Path, dtype: torch.dtype) -> Model:
    files = resolve_model(str(directory))
    config = read_model_config(files)
    return load_model(config, TorchKernels(dtype=dtype), iter_weights(files, config))


def random_tokens(length: int, seed: int) -> list[int]:
    return torch.randint(3, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("chunks", CHUNKINGS)
def test_a_prompt_computed_in_chunks_has_the_bits_of_the_whole(
    model: Model, num_threads: int, chunks: list[int]
) -> None:
    tokens = random_tokens(LENGTH, seed=0)
    whole = PagedRun(model, seed=1).run(tokens, [LENGTH])
    assert torch.equal(PagedRun(model, block_size=8, seed=2).run(tokens, chunks), whole)


def test_a_request_among_others_has_the_bits_it_has_alone(model: Model, num_threads: int) -> None:
    """Eleven requests of all lengths, whose chunks differ from step to step, so that every mixture of prefill and
    decode comes up; one arrives late."""
    lengths = [LENGTH, 1, 2, 9, 40, 41, 64, 65, 130, 257, 290]
    prompts = [random_tokens(length, seed=length) for length in lengths]
    alone = [PagedRun(model).run(prompt, [len(prompt)]) for prompt in prompts]

    run = PagedRun(model, num_blocks=256, block_size=8, seed=3)
    requests = [PagedRequest(prompt) for prompt in prompts]
    computed: list[list[torch.Tensor]] = [[] for _ in requests]
    generator = torch.Generator().manual_seed(4)
    step = 0
    while any(request.num_computed < len(request.token_ids) for request in requests):
        step += 1
        shares = []
        for index in torch.randperm(len(requests), generator=generator).tolist():
            request = requests[index]
            left = len(request.token_ids) - request.num_computed
            wanted = (1, 1, 3, 17, 80)[int(torch.randint(5, (1,), generator=generator))]
            if left and not (index == 0 and step < 4):
                shares.append((index, request, min(left, wanted)))
        logits = run.step([(request, share) for _, request, share in shares]) if shares else []
        for (index, _, _), rows in zip(shares, logits, strict=True):
            computed[index].append(rows)
    assert step > 6
    for expected, rows in zip(alone, computed, strict=True):
        assert torch.equal(torch.cat(rows), expected)


def test_many_decodes_together_have_the_bits_of_each_alone(model: Model, num_threads: int) -> None:
    """More decodes than are computed in one go, over contexts of different numbers of tiles."""
    prompts = [random_tokens(1 + 7 * index, seed=index) for index in range(40)]
    alone = [PagedRun(model).run(prompt, [len(prompt)])[-1] for prompt in prompts]
    run = PagedRun(model, num_blocks=512, block_size=16, seed=5)
    requests = [PagedRequest(prompt) for prompt in prompts]
    for request in requests:
        if len(request.token_ids) > 1:
            run.step([(request, len(request.token_ids) - 1)])
    together = run.step([(request, 1) for request in requests])
    for expected, rows in zip(alone, together, strict=True):
        assert torch.equal(rows[0], expected)


def test_a_neighbour_that_fails_leaves_no_trace(model: Model) -> None:
    """Blocks full of nan, beside a request and under it, change no bit of it."""
    tokens = random_tokens(100, seed=6)
    expected = PagedRun(model, seed=7).run(tokens, [60, 40])
    run = PagedRun(model, seed=7)
    for layer in model._kv_cache:  # type: ignore[attr-defined]
        for cache in layer:
            cache.fill_(torch.nan)
    assert torch.equal(run.run(tokens, [60, 40]), expected)


def test_one_thread_and_two_give_the_same_bits(model: Model) -> None:
    tokens = random_tokens(LENGTH, seed=8)
    before = torch.get_num_threads()
    try:
        results = []
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            results.append(PagedRun(model).run(tokens, [250, 1, 49]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)
