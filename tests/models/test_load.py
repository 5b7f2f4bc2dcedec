"""Loading: every key finds its place, what is missing or unknown is named, and no more lies unpacked than must."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from paged_run import PagedRun
from tiny import make_tiny_checkpoint, make_tiny_model

from pellucid.kernels.interface import Kernels
from pellucid.kernels.torch_kernels import TorchKernels
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.errors import UnsupportedModelError
from pellucid.loader.resolve import resolve_model
from pellucid.loader.weights import iter_weights
from pellucid.models.config import ModelConfig
from pellucid.models.decoder import Decoder
from pellucid.models.load import WeightsError, load_model
from pellucid.models.registry import MODELS

Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelConfig, Weights]:
    return read(make_tiny_checkpoint(tmp_path_factory.mktemp("tied"), "llama_tied"))


def read(directory: Path) -> tuple[ModelConfig, Weights]:
    files = resolve_model(str(directory))
    config = read_model_config(files)
    return config, {name: tensor for name, tensor in iter_weights(files, config) if isinstance(tensor, torch.Tensor)}


def test_missing_and_unknown_keys_are_one_error_that_lists_them(checkpoint: tuple[ModelConfig, Weights]) -> None:
    config, weights = checkpoint
    wrong = dict(weights)
    del wrong["model.layers.1.self_attn.k_proj.weight"]
    del wrong["model.norm.weight"]
    wrong["model.layers.0.mlp.experts.weight"] = torch.zeros(2)
    with pytest.raises(WeightsError) as caught:
        load_model(config, TorchKernels(), wrong.items())
    message = str(caught.value)
    assert "LlamaForCausalLM" in message
    assert "2 missing: model.norm.weight, model.layers.1.self_attn.k_proj.weight" in message
    assert "1 unknown: model.layers.0.mlp.experts.weight" in message


def test_the_list_of_keys_is_bounded(checkpoint: tuple[ModelConfig, Weights]) -> None:
    config, _ = checkpoint
    stray = ((f"stray.{index}", torch.zeros(1)) for index in range(10_000))
    with pytest.raises(WeightsError, match=r"10000 unknown: stray\.0, .*stray\.7, \.\.\.") as caught:
        load_model(config, TorchKernels(), stray)
    assert len(str(caught.value)) < 2000


def test_a_tensor_of_another_shape_is_named(checkpoint: tuple[ModelConfig, Weights]) -> None:
    config, weights = checkpoint
    key = "model.layers.0.mlp.up_proj.weight"
    with pytest.raises(WeightsError, match=rf"{key}: has the shape \[3, 64\], .* says \[160, 64\]"):
        load_model(config, TorchKernels(), (weights | {key: torch.zeros(3, 64)}).items())


def test_a_key_given_twice_is_refused(checkpoint: tuple[ModelConfig, Weights]) -> None:
    config, weights = checkpoint
    with pytest.raises(WeightsError, match=r"'model\.norm\.weight' twice"):
        load_model(config, TorchKernels(), [*weights.items(), ("model.norm.weight", weights["model.norm.weight"])])


def test_buffers_and_copies_of_a_tied_head_are_passed_over(checkpoint: tuple[ModelConfig, Weights]) -> None:
    config, weights = checkpoint
    extra = {
        "lm_head.weight": weights["model.embed_tokens.weight"],
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(10),
    }
    load_model(config, TorchKernels(), (weights | extra).items())


def test_an_untied_head_is_not_the_embedding(tmp_path: Path) -> None:
    config, weights = read(make_tiny_checkpoint(tmp_path, "qwen3"))
    assert not config.tie_word_embeddings
    model = load_model(config, TorchKernels(), weights.items())
    silent = load_model(config, TorchKernels(), (weights | {"lm_head.weight": torch.zeros(512, 64)}).items())
    assert PagedRun(model).run([5, 6, 7], [3]).any()
    assert not PagedRun(silent).run([5, 6, 7], [3]).any()


def test_any_order_of_the_tensors_gives_the_same_model(checkpoint: tuple[ModelConfig, Weights]) -> None:
    config, weights = checkpoint
    forwards = load_model(config, TorchKernels(), weights.items())
    backwards = load_model(config, TorchKernels(), reversed(weights.items()))
    tokens = list(range(5, 45))
    assert torch.equal(PagedRun(forwards).run(tokens, [40]), PagedRun(backwards).run(tokens, [40]))


def test_a_matrix_is_let_go_of_as_soon_as_it_is_packed(checkpoint: tuple[ModelConfig, Weights]) -> None:
    config, weights = checkpoint
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal most
        for name, tensor in sorted(weights.items()):
            source = tensor.clone()
            alive.add(source)
            yield name, source
            del source
            most = max(most, len(alive))

    load_model(config, TorchKernels(), stream())
    assert most <= 3  # q, k and v wait for each other


def test_progress_rises_to_one(checkpoint: tuple[ModelConfig, Weights]) -> None:
    config, weights = checkpoint
    seen: list[float] = []
    load_model(config, TorchKernels(), weights.items(), on_progress=seen.append)
    assert seen == sorted(seen)
    assert len(seen) == len(weights)
    assert seen[-1] == 1.0


def test_quantization_the_backend_has_not_is_an_error(checkpoint: tuple[ModelConfig, Weights]) -> None:
    config, weights = checkpoint
    with pytest.raises(ValueError, match="native kernels"):
        load_model(config, TorchKernels(), weights.items(), quantization="int8")


def test_an_unknown_architecture_is_refused_with_those_there_are(checkpoint: tuple[ModelConfig, Weights]) -> None:
    config = dataclasses.replace(checkpoint[0], architecture="MambaForCausalLM")
    with pytest.raises(UnsupportedModelError, match=r"MambaForCausalLM.*LlamaForCausalLM.*Gemma3ForCausalLM"):
        load_model(config, TorchKernels(), [])


def test_a_model_class_of_ones_own_can_be_added(checkpoint: tuple[ModelConfig, Weights]) -> None:
    class Mine(Decoder):
        def __init__(self, config: ModelConfig, kernels: Kernels, max_model_len: int, quantization: str | None = None):
            super().__init__(config, kernels, max_model_len, quantization)

    config = dataclasses.replace(checkpoint[0], architecture="Mine")
    model = load_model(config, TorchKernels(), checkpoint[1].items(), models={**MODELS, "Mine": Mine})
    assert isinstance(model, Mine)


@pytest.mark.parametrize(
    ("logit_scale", "transform"), [(0.25, lambda logits: logits * 0.25), (-2.0, lambda logits: logits * -2.0)]
)
def test_logit_scale_scales_the_logits(
    checkpoint: tuple[ModelConfig, Weights], logit_scale: float, transform: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    config, weights = checkpoint
    tokens = [5, 6, 7]
    plain = PagedRun(load_model(config, TorchKernels(), weights.items())).run(tokens, [3])
    scaled_config = dataclasses.replace(config, logit_scale=logit_scale)
    scaled = PagedRun(load_model(scaled_config, TorchKernels(), weights.items())).run(tokens, [3])
    torch.testing.assert_close(scaled, transform(plain))


def test_the_softcap_of_the_logits_is_transformers(tmp_path: Path) -> None:
    """transformers leaves out attention's in this family, and no Gemma 3 has one; the kernels' tests prove ours."""
    config, weights = read(make_tiny_checkpoint(tmp_path, "gemma3", final_logit_softcapping=1.5))
    assert config.logit_softcap == 1.5
    tokens = list(range(5, 100))
    logits = PagedRun(load_model(config, TorchKernels(), weights.items())).run(tokens, [95])
    with torch.inference_mode():
        expected = make_tiny_model("gemma3", final_logit_softcapping=1.5)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    assert 1.0 < logits.abs().max() <= 1.5


def test_kv_bytes_per_block_count_all_layers(checkpoint: tuple[ModelConfig, Weights]) -> None:
    model = load_model(checkpoint[0], TorchKernels(), checkpoint[1].items())
    assert model.kv_bytes_per_block(16) == 3 * 2 * 16 * 2 * 20 * 4
    assert model.kv_bytes_per_block(16, "bf16") == 3 * 2 * 16 * 2 * 20 * 2
