"""Every operation computed at once, one call into the compiled module each."""

from __future__ import annotations

import operator
from typing import Any

import torch

from pellucid.kernels.cpu.operations import AttentionShape, Operations, RopeArguments
from pellucid.kernels.forward_batch import ForwardBatch


class EagerOperations(Operations):
    """Values are float32 tensors [rows, features]."""

    def __init__(self, native: Any, executor: Any) -> None:
        self._native = native
        self._executor = executor
        self._tensors: tuple[torch.Tensor, ...] = ()
        self._block_size = 0
        self._step: Any = None

    def step_batch(self, batch: ForwardBatch) -> Any:
        """The batch as the compiled module wants it, which is where its memory lies: all layers of a step share one,
        and so do steps whose tensors are the same objects.
        """
        tensors = (
            batch.input_ids,
            batch.positions,
            batch.query_start_loc,
            batch.seq_lens,
            batch.slot_mapping,
            batch.block_table,
            batch.logits_indices,
        )
        if batch.block_size != self._block_size or any(map(operator.is_not, tensors, self._tensors)):
            self._step = self._native.StepBatch(*tensors, batch.block_size)
            self._tensors, self._block_size = tensors, batch.block_size
        return self._step

    def embedding(self, input_ids: torch.Tensor, matrix: Any, scale: float) -> torch.Tensor:
        out = torch.empty(input_ids.shape[0], matrix.in_features)
        self._executor.embedding(matrix, input_ids, scale, out)
        return out

    def linear(self, x: torch.Tensor, matrix: Any, softcap: float) -> torch.Tensor:
        out = torch.empty(x.shape[0], matrix.out_features)
        self._executor.linear(matrix, x, softcap, out)
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out = torch.empty_like(x)
        self._executor.rms_norm(x, weight, eps, out)
        return out

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        self._executor.add(x, y, out)
        return out

    def gated_activation(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        out = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2)
        self._executor.gated_activation(gate_up, activation, out)
        return out

    def select_rows(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, indices)

    def rope_and_cache(
        self, qkv: torch.Tensor, kv_cache: Any, batch: ForwardBatch, arguments: RopeArguments
    ) -> torch.Tensor:
        out = torch.empty(qkv.shape[0], arguments.num_heads * kv_cache.head_dim)
        self._executor.rope_and_cache(
            qkv,
            kv_cache,
            self.step_batch(batch),
            arguments.cos_sin,
            arguments.num_heads,
            arguments.q_norm,
            arguments.k_norm,
            arguments.norm_eps,
            out,
        )
        return out

    def paged_attention(
        self, q: torch.Tensor, kv_cache: Any, batch: ForwardBatch, shape: AttentionShape
    ) -> torch.Tensor:
        out = torch.empty_like(q)
        self._executor.paged_attention(
            q,
            kv_cache,
            self.step_batch(batch),
            shape.num_heads,
            shape.scale,
            shape.sliding_window,
            shape.softcap,
            out,
        )
        return out
