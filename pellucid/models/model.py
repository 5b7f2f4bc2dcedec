"""What the runner knows of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.kernels.interface import Kernels
from pellucid.layers.slots import WeightSlots
from pellucid.models.config import ModelConfig


class Model(ABC):
    """A decoder with its KV pool. One step: `model(batch)`, or `forward` and then `compute_logits` of its result.

    `model` itself is a ForwardFunction: hand it to Kernels.compile_forward once the KV cache is allocated.
    """

    def __init__(self, config: ModelConfig, kernels: Kernels, max_model_len: int) -> None:
        self.config = config
        self.kernels = kernels
        self.max_model_len = max_model_len

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:
        """float32 [L, vocab]: the logits of the rows batch.logits_indices."""
        return self.compute_logits(self.forward(batch), batch)

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """[T, hidden]: the hidden stream after the last layer, before the final norm; writes the batch's keys and
        values into the KV cache. Positions must be below max_model_len."""

    @abstractmethod
    def final_hidden(self, hidden: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[T, hidden] of `forward` -> [L, hidden]: the final norm of the rows batch.logits_indices (as HF's
        last_hidden_state, for embeddings)."""

    @abstractmethod
    def compute_logits(self, hidden: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[T, hidden] of `forward` -> float32 [L, vocab], of the rows batch.logits_indices."""

    @abstractmethod
    def allocate_kv_cache(self, num_blocks: int, block_size: int, dtype: str = "auto") -> None:
        """Make the pool, in place of any earlier one. dtype: as Kernels.allocate_kv_cache."""

    @abstractmethod
    def kv_bytes_per_block(self, block_size: int, dtype: str = "auto") -> int:
        """Bytes of one block of the pool, all layers together."""

    @abstractmethod
    def slots(self) -> WeightSlots:
        """The checkpoint's keys this model wants: all of them, and no others but `ignored_keys`."""

    def ignored_keys(self) -> tuple[str, ...]:
        """Regular expressions (full match) of keys that checkpoints have and this model has no use for."""
        return ()
