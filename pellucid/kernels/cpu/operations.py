"""The operations of the CPU backend, as both ways of carrying them out see them: now, or on a tape for later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from pellucid.kernels.forward_batch import ForwardBatch


@dataclass(frozen=True)
class RopeArguments:
    """cos_sin: float32 [positions, rotary_dim]; q_norm, k_norm: float32 [head_dim] or None."""

    cos_sin: torch.Tensor
    num_heads: int
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    norm_eps: float


@dataclass(frozen=True)
class AttentionShape:
    """sliding_window, softcap: 0 for none."""

    num_heads: int
    scale: float
    sliding_window: int
    softcap: float


class Operations(ABC):
    """matrix, kv_cache: the compiled module's PackedMatrix and KVCache. What a tensor stands for is up to the class."""

    @abstractmethod
    def embedding(self, input_ids: torch.Tensor, matrix: Any, scale: float) -> torch.Tensor: ...

    @abstractmethod
    def linear(self, x: torch.Tensor, matrix: Any, softcap: float) -> torch.Tensor: ...

    @abstractmethod
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...

    @abstractmethod
    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def gated_activation(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor: ...

    @abstractmethod
    def select_rows(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def rope_and_cache(
        self, qkv: torch.Tensor, kv_cache: Any, batch: ForwardBatch, arguments: RopeArguments
    ) -> torch.Tensor: ...

    @abstractmethod
    def paged_attention(
        self, q: torch.Tensor, kv_cache: Any, batch: ForwardBatch, shape: AttentionShape
    ) -> torch.Tensor: ...
