"""Recording a forward pass on a tape, and replaying it: what a CUDA graph does for a GPU.

A model's forward is plain Python over the kernel interface. While it is recorded, every operation returns a stand-in, a
tensor without memory whose identity names a node of the tape; nothing is computed. The tape knows each value's number
of rows by its meaning, not by its size: one per token, or one per row whose logits are wanted. So one recording serves
every batch, and replaying it is a single call into the compiled module, which fuses, plans buffers and runs the steps
(native/src/tape/). The bits are those of the eager operations.
"""

from __future__ import annotations

from typing import Any

import torch

from pellucid.kernels.cpu.operations import AttentionShape, Operations, RopeArguments
from pellucid.kernels.forward_batch import ForwardBatch


class RecordingError(Exception):
    """The forward pass does something to its activations that is not an operation of the kernel interface."""


def stand_in_batch(block_size: int) -> ForwardBatch:
    """A batch of tensors without memory: a forward pass that looks into one of them fails at once."""

    def integers(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device="meta")

    return ForwardBatch(
        input_ids=integers(1),
        positions=integers(1),
        query_start_loc=integers(2),
        seq_lens=integers(1),
        slot_mapping=integers(1),
        block_table=integers(1, 1),
        logits_indices=integers(1),
        block_size=block_size,
    )


class RecordingOperations(Operations):
    """Values are stand-ins; `keep_alive` holds all that the tape refers to without owning it."""

    def __init__(self, native: Any, executor: Any, batch: ForwardBatch) -> None:
        self._builder = native.TapeBuilder(executor)
        self._batch = batch
        self._nodes: dict[int, int] = {}  # id of a stand-in -> node
        self._stand_ins: list[torch.Tensor] = []  # alive, so that no id is used twice
        self.keep_alive: list[Any] = []

    def build(self, result: torch.Tensor, executor: Any) -> Any:
        """The tape (pellucid_native.Tape) whose result is this value."""
        return self._builder.build(self._node(result), executor)

    def _value(self, node: int) -> torch.Tensor:
        stand_in = torch.empty((1, self._builder.width(node)), device="meta")
        self._nodes[id(stand_in)] = node
        self._stand_ins.append(stand_in)
        return stand_in

    def _node(self, value: torch.Tensor) -> int:
        node = self._nodes.get(id(value))
        if node is None:
            raise RecordingError(f"a tensor of shape {tuple(value.shape)} is not the result of a kernel operation")
        return node

    def _kept(self, thing: Any) -> Any:
        self.keep_alive.append(thing)
        return thing

    def _check_batch(self, batch: ForwardBatch) -> None:
        if batch is not self._batch:
            raise RecordingError("the forward pass made a batch of its own")

    def embedding(self, input_ids: torch.Tensor, matrix: Any, scale: float) -> torch.Tensor:
        if input_ids is not self._batch.input_ids:
            raise RecordingError("embedding of something else than batch.input_ids")
        return self._value(self._builder.embedding(self._kept(matrix), scale))

    def linear(self, x: torch.Tensor, matrix: Any, softcap: float) -> torch.Tensor:
        return self._value(self._builder.linear(self._node(x), self._kept(matrix), softcap))

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self._value(self._builder.rms_norm(self._node(x), self._kept(weight), eps))

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self._value(self._builder.add(self._node(x), self._node(y)))

    def gated_activation(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        return self._value(self._builder.gated_activation(self._node(gate_up), activation))

    def select_rows(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        if indices is not self._batch.logits_indices:
            raise RecordingError("select_rows by something else than batch.logits_indices")
        return self._value(self._builder.select_rows(self._node(x)))

    def rope_and_cache(
        self, qkv: torch.Tensor, kv_cache: Any, batch: ForwardBatch, arguments: RopeArguments
    ) -> torch.Tensor:
        self._check_batch(batch)
        self._kept(arguments)
        node = self._builder.rope_and_cache(
            self._node(qkv),
            self._kept(kv_cache),
            arguments.cos_sin,
            arguments.num_heads,
            arguments.q_norm,
            arguments.k_norm,
            arguments.norm_eps,
        )
        return self._value(node)

    def paged_attention(
        self, q: torch.Tensor, kv_cache: Any, batch: ForwardBatch, shape: AttentionShape
    ) -> torch.Tensor:
        self._check_batch(batch)
        node = self._builder.paged_attention(
            self._node(q), self._kept(kv_cache), shape.num_heads, shape.scale, shape.sliding_window, shape.softcap
        )
        return self._value(node)


class ReplayedForward:
    """A recorded forward pass: ForwardBatch -> float32 [rows, features], for any batch."""

    def __init__(self, tape: Any, eager: Any, keep_alive: list[Any], pages: Any = None) -> None:
        """pages: the pool's PagesAhead."""
        self.tape = tape
        self._pages = pages
        self._eager = eager  # makes the batch's native form
        self._keep_alive = keep_alive

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:
        step = self._eager.step_batch(batch)
        if self._pages is not None:
            self._pages.used(step)
        return torch.from_numpy(self.tape.run(step))
