"""Which class runs which architecture, by the name in HF's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pellucid.kernels.interface import Kernels
from pellucid.loader.errors import UnsupportedModelError
from pellucid.models.config import ModelConfig
from pellucid.models.decoder import Decoder
from pellucid.models.model import Model


class ModelFactory(Protocol):
    def __call__(
        self, config: ModelConfig, kernels: Kernels, max_model_len: int, quantization: str | None = None
    ) -> Model: ...


MODELS: Mapping[str, ModelFactory] = {
    "LlamaForCausalLM": Decoder,
    "MistralForCausalLM": Decoder,
    "Qwen2ForCausalLM": Decoder,
    "Qwen3ForCausalLM": Decoder,
    "Gemma3ForCausalLM": Decoder,
    "Gemma3ForConditionalGeneration": Decoder,  # its text half
}


def model_factory(architecture: str, models: Mapping[str, ModelFactory] = MODELS) -> ModelFactory:
    """Raises UnsupportedModelError, which lists what there is. models: pass `{**MODELS, "Mine": Mine}` to have more."""
    factory = models.get(architecture)
    if factory is None:
        known = ", ".join(models)
        raise UnsupportedModelError(f"the architecture {architecture!r} is not supported; there are {known}")
    return factory
