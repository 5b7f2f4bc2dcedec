"""The kernels in plain torch, for any device torch knows: what every other backend is tested against."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.kernels.interface import Kernels
from pellucid.kernels.torch.attention import KVCache, PagedAttention
from pellucid.kernels.torch.attention_plan import AttentionPlan
from pellucid.kernels.torch.matmul import InvariantMatmul
from pellucid.kernels.torch.weight import TorchLinearWeight, stack_parts
from pellucid.kernels.weights import LinearWeight, WeightSource

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KV_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


class TorchKernels(Kernels):
    """Linear layers compute in `dtype`; norms, rotations, attention and activations in float32, rounded to `dtype`.

    Elementwise functions are composed of those that torch computes alike at every place of a tensor (exp, tanh and
    the exact arithmetic); its fused silu and gelu use another routine for the last few elements of a thread's share.
    """

    name = "torch"

    def __init__(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype} is not supported; choose one of {', '.join(map(str, DTYPES))}")
        self.device = torch.device(device)
        self.dtype = dtype
        self.activation_dtype = dtype
        self._matmul = InvariantMatmul(self.device)
        self._plan: AttentionPlan | None = None

    # weights ----------------------------------------------------------------------------------------------------

    def pack_linear(
        self, parts: Sequence[WeightSource], bias: torch.Tensor | None = None, quantization: str | None = None
    ) -> LinearWeight:
        if quantization is not None:
            raise ValueError(
                f"quantization={quantization!r} needs the native kernels (kernels='cpu'); "
                "the torch backend computes unquantised weights only"
            )
        weight = stack_parts(parts, self.dtype, self.device)
        if bias is not None and bias.shape != (weight.shape[0],):
            raise ValueError(f"a bias of shape {tuple(bias.shape)} does not fit {weight.shape[0]} output features")
        return TorchLinearWeight(weight, None if bias is None else bias.to(self.device, self.dtype))

    def embedding(self, input_ids: torch.Tensor, weight: LinearWeight, scale: float = 1.0) -> torch.Tensor:
        """As HF, the scale is rounded to the dtype of the weights first."""
        rows = _dense(weight).weight.index_select(0, input_ids)
        return rows if scale == 1.0 else rows * torch.tensor(scale, dtype=rows.dtype, device=rows.device)

    def linear(self, x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
        dense = _dense(weight)
        return self._matmul.linear(x, dense.weight, dense.bias)

    def logits(self, hidden: torch.Tensor, weight: LinearWeight, softcap: float | None = None) -> torch.Tensor:
        logits = self.linear(hidden, weight).float()
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap

    # norms and activations -----------------------------------------------------------------------------------------

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return _rms_norm(x.float(), weight, eps).to(x.dtype)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual = x + residual
        return self.rms_norm(residual, weight, eps), residual

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return x + residual

    def gated_activation(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        gate = gate.contiguous()
        if activation == "silu":
            activated = gate / (torch.exp(-gate) + 1.0)
        elif activation == "gelu_tanh":
            inner = (gate * gate * gate * 0.044715 + gate) * (2.0 / torch.pi) ** 0.5
            activated = gate * 0.5 * (torch.tanh(inner) + 1.0)
        else:
            raise ValueError(f"activation {activation!r} is not known; there are 'silu' and 'gelu_tanh'")
        return (activated * up).to(gate_up.dtype)

    def select_rows(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, indices)

    # attention -----------------------------------------------------------------------------------------------------

    def allocate_kv_cache(
        self, num_layers: int, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str = "auto"
    ) -> list[KVCache]:
        shape = (num_blocks, block_size, num_kv_heads, head_dim)
        kv_dtype = self._kv_dtype(dtype)
        return [
            KVCache(
                torch.zeros(shape, dtype=kv_dtype, device=self.device),
                torch.zeros(shape, dtype=kv_dtype, device=self.device),
            )
            for _ in range(num_layers)
        ]

    def kv_bytes_per_block(self, block_size: int, num_kv_heads: int, head_dim: int, dtype: str = "auto") -> int:
        return 2 * block_size * num_kv_heads * head_dim * self._kv_dtype(dtype).itemsize

    def _kv_dtype(self, dtype: str) -> torch.dtype:
        if dtype == "auto":
            return self.dtype
        if dtype not in KV_DTYPES:
            raise ValueError(
                f"kv_cache_dtype={dtype!r} is not supported by the torch backend; "
                f"choose one of auto, {', '.join(KV_DTYPES)}"
            )
        return KV_DTYPES[dtype]

    def rope_and_cache(
        self,
        qkv: torch.Tensor,
        kv_cache: KVCache,
        batch: ForwardBatch,
        cos_sin: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        norm_eps: float = 1e-6,
    ) -> torch.Tensor:
        num_tokens = qkv.shape[0]
        heads = qkv.view(num_tokens, num_heads + 2 * num_kv_heads, head_dim)
        q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        cos, sin = cos_sin.index_select(0, batch.positions)[:, None, :].chunk(2, dim=-1)
        q = _rotate(q.float() if q_norm is None else _rms_norm(q.float(), q_norm, norm_eps), cos, sin)
        k = _rotate(k.float() if k_norm is None else _rms_norm(k.float(), k_norm, norm_eps), cos, sin)
        slots = batch.slot_mapping.long()
        for cache, rows in ((kv_cache.k, k), (kv_cache.v, v)):
            cache.view(-1, num_kv_heads, head_dim).index_copy_(0, slots, rows.to(cache.dtype))
        return q.to(qkv.dtype).reshape(num_tokens, num_heads * head_dim)

    def paged_attention(
        self,
        q: torch.Tensor,
        kv_cache: KVCache,
        batch: ForwardBatch,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        attention = PagedAttention(self._matmul, num_heads, num_kv_heads, head_dim, scale, sliding_window, softcap)
        return attention(q, kv_cache, self._plan_for(batch))

    def _plan_for(self, batch: ForwardBatch) -> AttentionPlan:
        """All layers of a step share one plan. A ForwardBatch is a value: its tensors are not written to again."""
        if self._plan is None or self._plan.batch is not batch:
            self._plan = AttentionPlan(batch)
        return self._plan


def _dense(weight: LinearWeight) -> TorchLinearWeight:
    if not isinstance(weight, TorchLinearWeight):
        raise TypeError(f"a {type(weight).__name__} was packed by another backend")
    return weight


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [T, heads, head_dim]; cos, sin: [T, 1, rotary_dim / 2]. Dimensions past rotary_dim stay as they are."""
    half = cos.shape[-1]
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
