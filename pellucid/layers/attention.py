"""Self-attention over the paged KV cache."""

from __future__ import annotations

import torch

from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.kernels.interface import Kernels, KVCacheLayer
from pellucid.layers.linear import Linear
from pellucid.layers.norm import RMSNorm
from pellucid.layers.slots import WeightSlots
from pellucid.models.config import ModelConfig


class Attention:
    """Grouped-query attention; with biases, norms of queries and keys, or a sliding window as the config says.

    cos_sin: the rotary table of this layer (float32 [positions, rotary_dim]), shared with the layers like it.
    """

    def __init__(
        self,
        kernels: Kernels,
        config: ModelConfig,
        cos_sin: torch.Tensor,
        sliding_window: int | None,
        quantization: str | None,
    ) -> None:
        self._kernels = kernels
        self._num_heads = config.num_heads
        self._num_kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._cos_sin = cos_sin
        self._sliding_window = sliding_window
        self._softcap = config.attention_softcap
        self._scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        self._qkv = Linear(kernels, config.hidden_size, parts, config.attention_bias, quantization)
        self._output = Linear(
            kernels, q_size, {"o_proj": config.hidden_size}, config.attention_output_bias, quantization
        )
        self._q_norm: RMSNorm | None = None
        self._k_norm: RMSNorm | None = None
        self._norm_eps = config.rms_norm_eps
        if config.qk_norm:
            self._q_norm, self._k_norm = (
                RMSNorm(kernels, config.head_dim, config.rms_norm_eps, config.norm_weight_plus_one) for _ in range(2)
            )

    def __call__(self, x: torch.Tensor, kv_cache: KVCacheLayer, batch: ForwardBatch) -> torch.Tensor:
        """x: [T, hidden] -> [T, hidden]; writes this step's keys and values into kv_cache."""
        heads = (self._num_heads, self._num_kv_heads, self._head_dim)
        q = self._kernels.rope_and_cache(
            self._qkv(x),
            kv_cache,
            batch,
            self._cos_sin,
            *heads,
            q_norm=None if self._q_norm is None else self._q_norm.weight,
            k_norm=None if self._k_norm is None else self._k_norm.weight,
            norm_eps=self._norm_eps,
        )
        attended = self._kernels.paged_attention(
            q, kv_cache, batch, *heads, self._scale, self._sliding_window, self._softcap
        )
        return self._output(attended)

    def slots(self, prefix: str) -> WeightSlots:
        slots = self._qkv.slots(prefix) | self._output.slots(prefix)
        if self._q_norm is not None and self._k_norm is not None:
            slots |= self._q_norm.slots(f"{prefix}q_norm.") | self._k_norm.slots(f"{prefix}k_norm.")
        return slots
