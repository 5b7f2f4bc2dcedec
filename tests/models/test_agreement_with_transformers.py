"""Small random models of every family, saved by transformers and read back through the loader, against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from paged_run import PagedRequest, PagedRun
from tiny import FAMILIES, VOCAB_SIZE, make_tiny_checkpoint, make_tiny_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from pellucid.kernels.torch_kernels import TorchKernels
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.resolve import resolve_model
from pellucid.loader.weights import iter_weights
from pellucid.models.load import load_model
from pellucid.models.model import Model

LENGTH = 420  # longer than every window, and than a tile of keys
CHUNKS = (1, 48, 1, 1, 130, 7, 200, 32)


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Model:
    files = resolve_model(str(directory))
    config = read_model_config(files)
    return load_model(config, TorchKernels(dtype=dtype), iter_weights(files, config))


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, PreTrainedModel]:
    directory = make_tiny_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    return load(directory), AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()


def random_tokens(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def test_logits_over_a_whole_sequence_computed_in_chunks_agree(pair: tuple[Model, PreTrainedModel]) -> None:
    ours, theirs = pair
    tokens = random_tokens(LENGTH)
    expected = theirs(torch.tensor([tokens])).logits[0]
    logits = PagedRun(ours).run(tokens, CHUNKS)
    assert logits.dtype == torch.float32
    assert expected.std() > 0.5  # lively enough for the next line to mean something
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@torch.inference_mode()
def test_greedy_continuations_are_equal(pair: tuple[Model, PreTrainedModel]) -> None:
    ours, theirs = pair
    prompt = random_tokens(60, seed=1)
    expected = list(prompt)
    for _ in range(24):
        expected.append(int(theirs(torch.tensor([expected])).logits[0, -1].argmax()))
    assert PagedRun(ours, block_size=8).greedy(prompt, 24) == expected[60:]


@torch.inference_mode()
def test_the_hidden_state_for_embeddings_is_transformers_last_hidden_state(tmp_path: Path) -> None:
    directory = make_tiny_checkpoint(tmp_path, "gemma3")
    ours, theirs = load(directory), AutoModelForCausalLM.from_pretrained(directory).eval()
    tokens = random_tokens(50)
    run = PagedRun(ours)
    batch = run.batch([(PagedRequest(tokens), 50)])
    hidden = ours.final_hidden(ours.forward(batch), batch)
    torch.testing.assert_close(hidden, theirs.model(torch.tensor([tokens])).last_hidden_state[0], rtol=0, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_bfloat16_is_as_near_to_float32_as_transformers_bfloat16(family: str, tmp_path: Path) -> None:
    directory = make_tiny_checkpoint(tmp_path, family, dtype=torch.bfloat16)
    tokens = random_tokens(200)

    def theirs(dtype: torch.dtype) -> torch.Tensor:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()
        return model(torch.tensor([tokens])).logits[0].float()

    exact = theirs(torch.float32)
    ours = PagedRun(load(directory, torch.bfloat16)).run(tokens, [120, 80])
    assert (ours - exact).std() < 1.2 * (theirs(torch.bfloat16) - exact).std()


def test_the_random_models_differ_in_what_they_should() -> None:
    """The windows and rotations of the tiny models are really at work, else the agreement above would prove little."""
    tokens = torch.tensor([random_tokens(200)])
    with torch.inference_mode():
        for family, changed in (("gemma3", {"sliding_window": 4096}), ("mistral", {"sliding_window": None})):
            same, other = make_tiny_model(family), make_tiny_model(family, **changed)
            assert (same(tokens).logits - other(tokens).logits)[0, -1].abs().max() > 0.01
