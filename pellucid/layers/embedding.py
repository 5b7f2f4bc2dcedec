"""The vocabulary at both ends of a model: token embedding and LM head, of one matrix or of two."""

from __future__ import annotations

import torch

from pellucid.kernels.interface import Kernels
from pellucid.layers.linear import Linear
from pellucid.layers.slots import WeightSlots
from pellucid.models.config import HEAD_QUANTIZATION, ModelConfig


class Vocabulary:
    """embed: token ids -> rows of the hidden stream; logits: hidden rows -> scores of all tokens."""

    def __init__(self, kernels: Kernels, config: ModelConfig, quantization: str | None) -> None:
        self._kernels = kernels
        self._scale = config.embedding_scale
        self._softcap = config.logit_softcap
        head_quantization = HEAD_QUANTIZATION.get(quantization, quantization)
        self._embedding = Linear(
            kernels,
            config.hidden_size,
            {"model.embed_tokens": config.vocab_size},
            quantization=head_quantization if config.tie_word_embeddings else None,
        )
        self._head = self._embedding
        if not config.tie_word_embeddings:
            head = {"lm_head": config.vocab_size}
            self._head = Linear(kernels, config.hidden_size, head, quantization=head_quantization)

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[T] -> [T, hidden]."""
        return self._kernels.embedding(input_ids, self._embedding.weight, self._scale)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[L, hidden], normalised -> float32 [L, vocab]."""
        return self._kernels.logits(hidden, self._head.weight, self._softcap)

    def slots(self, prefix: str = "") -> WeightSlots:
        return self._embedding.slots(prefix) | self._head.slots(prefix)
