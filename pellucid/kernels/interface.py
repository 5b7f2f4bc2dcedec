"""The one interface between models and the machine. torch is the oracle; cpu (C++) must agree with it.

Every operation keeps a row's bits independent of the other rows of the batch: each output element is reduced in an
order that depends on its own absolute position alone. That is what makes a request's tokens the same under any load.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.kernels.weights import LinearWeight, WeightSource

KVCacheLayer = Any  # one layer's keys and values for the whole pool, in the backend's own layout

ForwardFunction = Callable[[ForwardBatch], torch.Tensor]


class Kernels(ABC):
    """T: rows of the batch (tokens). All activations are [T, features] in `activation_dtype`, contiguous.

    Operations return new tensors and never write to their inputs, except where said.
    """

    name: str
    device: torch.device
    dtype: torch.dtype  # of unquantised weights and, by default, of the KV cache
    activation_dtype: torch.dtype

    # weights ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def pack_linear(
        self, parts: Sequence[WeightSource], bias: torch.Tensor | None = None, quantization: str | None = None
    ) -> LinearWeight:
        """Pack matrices [out_i, in], stacked along out (q, k, v as one), in the backend's layout.

        quantization: "int8" or "int4" to quantise at load; None keeps each part's own precision.
        Raises ValueError where the format or the shape is not supported, naming it.
        """

    @abstractmethod
    def embedding(self, input_ids: torch.Tensor, weight: LinearWeight, scale: float = 1.0) -> torch.Tensor:
        """Rows of the matrix: [T] -> [T, in_features], times scale."""

    @abstractmethod
    def linear(self, x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
        """x @ W.T + bias: [T, in_features] -> [T, out_features]."""

    @abstractmethod
    def logits(self, hidden: torch.Tensor, weight: LinearWeight, softcap: float | None = None) -> torch.Tensor:
        """The LM head: [L, hidden] -> float32 [L, vocab]; softcap c gives c * tanh(logits / c)."""

    # norms and activations -----------------------------------------------------------------------------------------

    @abstractmethod
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / sqrt(mean(x^2) + eps) * weight, computed in float32. weight: [features] float32 (Gemma's +1 added)."""

    @abstractmethod
    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rms_norm(x + residual), x + residual): the norm and the new residual stream."""

    @abstractmethod
    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x + residual."""

    @abstractmethod
    def gated_activation(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """[T, 2 * I] -> act(gate_up[:, :I]) * gate_up[:, I:]; activation: "silu" or "gelu_tanh"."""

    @abstractmethod
    def select_rows(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """x[indices]: [T, features] -> [L, features]."""

    # attention -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def allocate_kv_cache(
        self, num_layers: int, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str = "auto"
    ) -> list[KVCacheLayer]:
        """One KVCacheLayer per layer. dtype: "auto" (as `dtype`), "bf16", "f32" or "int8", where supported."""

    @abstractmethod
    def kv_bytes_per_block(self, block_size: int, num_kv_heads: int, head_dim: int, dtype: str = "auto") -> int:
        """Bytes of one block in one layer, keys and values together."""

    @abstractmethod
    def rope_and_cache(
        self,
        qkv: torch.Tensor,
        kv_cache: KVCacheLayer,
        batch: ForwardBatch,
        cos_sin: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        norm_eps: float = 1e-6,
    ) -> torch.Tensor:
        """Normalise (where given) and rotate queries and keys, write keys and values into the cache, return queries.

        qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim], q then k then v.
        cos_sin: float32 [max_position, rotary_dim], the first half of a row cosines, the second sines; rotation pairs
        dimension i with i + rotary_dim / 2 (the "neox" layout of HF checkpoints).
        Writes kv_cache at batch.slot_mapping. Returns [T, num_heads * head_dim].
        """

    @abstractmethod
    def paged_attention(
        self,
        q: torch.Tensor,
        kv_cache: KVCacheLayer,
        batch: ForwardBatch,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Causal attention of ragged queries over a paged KV cache (PagedAttention, Kwon et al. 2023).

        q: [T, num_heads * head_dim]. The query at absolute position p sees keys at (p - sliding_window, p].
        The KV range is split at fixed absolute positions and merged in order. Returns [T, num_heads * head_dim].
        """

    # whole step ----------------------------------------------------------------------------------------------------

    def compile_forward(self, forward: ForwardFunction, max_num_tokens: int, max_num_reqs: int) -> ForwardFunction:
        """A faster function with the same bits, where the backend can capture and replay one; else `forward` itself."""
        return forward
