"""CpuKernels: the kernel interface over the compiled module."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch

from pellucid.kernels.cpu.eager import EagerOperations
from pellucid.kernels.cpu.native import require_native
from pellucid.kernels.cpu.operations import AttentionShape, Operations, RopeArguments
from pellucid.kernels.cpu.recording import RecordingError, RecordingOperations, ReplayedForward, stand_in_batch
from pellucid.kernels.cpu.weights import CpuLinearWeight, pack
from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.kernels.interface import ForwardFunction, Kernels
from pellucid.kernels.weights import LinearWeight, WeightSource

logger = logging.getLogger(__name__)

_BYTES_OF_PAGES_AHEAD = 256 << 20  # of the pool: the memory taken for it before it is used
_KV_DTYPES = {torch.bfloat16: "bf16", torch.float32: "f32"}


class CpuKernels(Kernels):
    """Activations are float32 between operations; `dtype` is that of dense weights and, by default, of the KV cache.

    isa: an instruction set of pellucid_native.available_isas(); None: PELLUCID_ISA, or the best there is.
    num_threads: None for OMP_NUM_THREADS, or one a physical core. Not for use from several threads at once.
    Raises RuntimeError where the compiled module is missing, ValueError for a dtype or isa that is not supported.
    """

    name = "cpu"
    device = torch.device("cpu")
    activation_dtype = torch.float32

    def __init__(
        self, dtype: torch.dtype = torch.bfloat16, num_threads: int | None = None, isa: str | None = None
    ) -> None:
        if dtype not in _KV_DTYPES:
            raise ValueError(f"the CPU kernels compute in bfloat16 or float32, not {dtype}")
        self.dtype = dtype
        self._native = require_native()
        num_threads = num_threads or _threads_from_environment()
        self._executor = self._native.Executor(isa or os.environ.get("PELLUCID_ISA", ""), num_threads)
        self._eager = EagerOperations(self._native, self._executor)
        self._operations: Operations = self._eager
        self._pages: Any = None  # of the pool allocated last

    @property
    def isa(self) -> str:
        return self._executor.isa

    @property
    def num_threads(self) -> int:
        return self._executor.num_threads

    @property
    def thread_pool(self) -> Any:
        """The pellucid_native.ThreadPool that everything here runs on."""
        return self._executor.pool

    # weights ----------------------------------------------------------------------------------------------------

    def pack_linear(
        self, parts: Sequence[WeightSource], bias: torch.Tensor | None = None, quantization: str | None = None
    ) -> CpuLinearWeight:
        return pack(self._native, self._executor, parts, bias, self.dtype, quantization)

    def embedding(self, input_ids: torch.Tensor, weight: LinearWeight, scale: float = 1.0) -> torch.Tensor:
        packed = _packed(weight)
        if packed.format == "bf16":  # as HF: the scale is rounded to the dtype of the weights
            scale = torch.tensor(scale, dtype=torch.bfloat16).item()
        return self._operations.embedding(input_ids, packed.matrix, scale)

    def linear(self, x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
        return self._operations.linear(x, _packed(weight).matrix, 0.0)

    def logits(self, hidden: torch.Tensor, weight: LinearWeight, softcap: float | None = None) -> torch.Tensor:
        return self._operations.linear(hidden, _packed(weight).matrix, softcap or 0.0)

    # norms and activations -----------------------------------------------------------------------------------------

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self._operations.rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual = self._operations.add(x, residual)
        return self._operations.rms_norm(residual, weight, eps), residual

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._operations.add(x, residual)

    def gated_activation(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        return self._operations.gated_activation(gate_up, activation)

    def select_rows(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return self._operations.select_rows(x, indices)

    # attention -----------------------------------------------------------------------------------------------------

    def _kv_dtype(self, dtype: str) -> str:
        return _KV_DTYPES[self.dtype] if dtype == "auto" else dtype

    def allocate_kv_cache(
        self, num_layers: int, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str = "auto"
    ) -> list[Any]:
        kv_dtype = self._kv_dtype(dtype)
        caches = [
            self._native.KVCache(num_blocks, block_size, num_kv_heads, head_dim, kv_dtype) for _ in range(num_layers)
        ]
        self._pages = self._native.PagesAhead(caches, _BYTES_OF_PAGES_AHEAD)
        return caches

    def kv_bytes_per_block(self, block_size: int, num_kv_heads: int, head_dim: int, dtype: str = "auto") -> int:
        return self._native.kv_block_bytes(block_size, num_kv_heads, head_dim, self._kv_dtype(dtype))

    def rope_and_cache(
        self,
        qkv: torch.Tensor,
        kv_cache: Any,
        batch: ForwardBatch,
        cos_sin: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        norm_eps: float = 1e-6,
    ) -> torch.Tensor:
        _check_heads(kv_cache, num_kv_heads, head_dim)
        arguments = RopeArguments(cos_sin, num_heads, q_norm, k_norm, norm_eps)
        return self._operations.rope_and_cache(qkv, kv_cache, batch, arguments)

    def paged_attention(
        self,
        q: torch.Tensor,
        kv_cache: Any,
        batch: ForwardBatch,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        _check_heads(kv_cache, num_kv_heads, head_dim)
        shape = AttentionShape(num_heads, scale, sliding_window or 0, softcap or 0.0)
        return self._operations.paged_attention(q, kv_cache, batch, shape)

    # beside the interface ------------------------------------------------------------------------------------------

    def vocabulary_passes(self) -> Any:
        """pellucid_native.Vocabulary on these kernels' threads: see pellucid.sampling.native_vocabulary."""
        return self._native.Vocabulary(self._executor)

    # whole step ----------------------------------------------------------------------------------------------------

    def compile_forward(self, forward: ForwardFunction, max_num_tokens: int, max_num_reqs: int) -> ForwardFunction:
        """`forward` recorded once; replaying it is one call. `forward` itself, with a logged reason, where it does
        anything to activations that is not an operation of these kernels. The result is float32 and the caller's own.
        """
        batch = stand_in_batch(block_size=16)
        recording = RecordingOperations(self._native, self._executor, batch)
        self._operations = recording
        try:
            tape = recording.build(forward(batch), self._executor)
        except (RecordingError, NotImplementedError, RuntimeError, TypeError) as error:
            logger.warning("the forward pass is not replayed but run step by step: %s", error)
            return forward
        finally:
            self._operations = self._eager
        return ReplayedForward(tape, self._eager, recording.keep_alive, self._pages)


def _threads_from_environment() -> int:
    """The first number of OMP_NUM_THREADS, which may name one for each level of nesting; 0 where there is none."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def _packed(weight: LinearWeight) -> CpuLinearWeight:
    if not isinstance(weight, CpuLinearWeight):
        raise TypeError(f"a {type(weight).__name__} was packed by another backend")
    return weight


def _check_heads(kv_cache: Any, num_kv_heads: int, head_dim: int) -> None:
    if (kv_cache.num_kv_heads, kv_cache.head_dim) != (num_kv_heads, head_dim):
        raise ValueError(
            f"the cache has {kv_cache.num_kv_heads} heads of {kv_cache.head_dim}, not {num_kv_heads} of {head_dim}"
        )
