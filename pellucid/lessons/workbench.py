"""What every stage stands on: one forward pass of the engine's own model over a few rows, and the account of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from pellucid.core.block_accounting import num_blocks_for
from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.kernels.interface import ForwardFunction
from pellucid.lessons.task import Task
from pellucid.models.model import Model

PADDING_TOKEN = 0


@dataclass(frozen=True)
class Row:
    """A task's part of a step: compute its tokens [start, end); those before have their keys and values in the blocks.

    block_table: block i holds the keys and values of tokens [i * block_size, (i + 1) * block_size).
    padding: positions after `end` that are computed as well, for nothing: what makes rows equally long.
    A row with nothing to compute only says that its task holds these blocks.
    """

    task: Task
    start: int
    end: int
    block_table: Sequence[int]
    padding: int = 0


@dataclass
class Counts:
    """Since the run began. Tokens are rows of the forward passes; KV is in tokens, summed over the steps."""

    steps: int = 0
    tokens: int = 0
    padding_tokens: int = 0
    recomputed_tokens: int = 0  # real tokens, but not for the first time
    kv_reserved: int = 0
    kv_used: int = 0
    kv_reserved_peak: int = 0


class Workbench:
    """model: its KV cache is allocated here. max_batch: tasks that run together. token_budget: of a chunked step.

    replay: let the backend record the forward pass and replay it, as the engine does; the bits are the same.
    """

    def __init__(
        self,
        model: Model,
        *,
        num_blocks: int,
        block_size: int = 16,
        max_batch: int = 4,
        token_budget: int = 128,
        replay: bool = True,
    ) -> None:
        model.allocate_kv_cache(num_blocks, block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_batch = max_batch
        self.token_budget = token_budget
        self.counts = Counts()
        self._device = model.kernels.device
        self._forward: ForwardFunction = model
        if replay:
            self._forward = model.kernels.compile_forward(model, num_blocks * block_size, num_blocks)
        self._reached: dict[Task, int] = {}  # how far each task has been computed, ever

    def reset(self) -> None:
        self.counts = Counts()
        self._reached.clear()

    def blocks_for(self, num_tokens: int) -> int:
        return num_blocks_for(num_tokens, self.block_size)

    @torch.inference_mode()
    def step(self, rows: Sequence[Row], keeps_kv: bool = True) -> list[int | None]:
        """One forward pass. The next token of each row that reaches its task's last token, None for the others.

        keeps_kv: False says that the blocks are scratch memory, and are not to be counted as a cache.
        """
        computing = [row for row in rows if row.end - row.start + row.padding]
        logits = self._forward(self._batch(computing))
        self._account(computing)
        if keeps_kv:
            self._account_kv(rows)
        tokens = iter(self._sample(logits, [row for row in computing if _samples(row)]))
        return [next(tokens) if _samples(row) else None for row in rows]

    def _sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        """Greedy. logits: [len(rows), vocab]."""
        return logits.argmax(dim=-1).tolist()

    def _batch(self, rows: Sequence[Row]) -> ForwardBatch:
        """The rows one after another: ragged, unless the stage has padded them."""
        positions = [position for row in rows for position in range(row.start, row.end + row.padding)]
        ends = list(accumulate(row.end + row.padding - row.start for row in rows))
        width = max(len(row.block_table) for row in rows)
        tensors = {
            "input_ids": [token_id for row in rows for token_id in _input_ids(row)],
            "positions": positions,
            "query_start_loc": [0, *ends],
            "seq_lens": [row.end + row.padding for row in rows],
            "slot_mapping": [slot for row in rows for slot in self._slots(row)],
            "block_table": [[*row.block_table, *[0] * (width - len(row.block_table))] for row in rows],
            "logits_indices": [end - 1 - row.padding for row, end in zip(rows, ends, strict=True) if _samples(row)],
        }
        return ForwardBatch(
            **{name: torch.tensor(values, dtype=torch.int32, device=self._device) for name, values in tensors.items()},
            block_size=self.block_size,
        )

    def _slots(self, row: Row) -> Iterator[int]:
        for position in range(row.start, row.end + row.padding):
            block, offset = divmod(position, self.block_size)
            yield row.block_table[block] * self.block_size + offset

    def _account(self, rows: Sequence[Row]) -> None:
        counts = self.counts
        counts.steps += 1
        for row in rows:
            reached = self._reached.get(row.task, 0)
            counts.tokens += row.end - row.start + row.padding
            counts.padding_tokens += row.padding
            counts.recomputed_tokens += max(min(reached, row.end) - row.start, 0)
            self._reached[row.task] = max(reached, row.end)

    def _account_kv(self, rows: Sequence[Row]) -> None:
        """A block that several tables share counts once; tokens of a finished task are of no use to anybody."""
        fill: dict[int, int] = {}
        for row in rows:
            num_tokens = 0 if row.task.is_finished else row.end
            for index, block in enumerate(row.block_table):
                in_block = min(max(num_tokens - index * self.block_size, 0), self.block_size)
                fill[block] = max(fill.get(block, 0), in_block)
        reserved = len(fill) * self.block_size
        self.counts.kv_reserved += reserved
        self.counts.kv_used += sum(fill.values())
        self.counts.kv_reserved_peak = max(self.counts.kv_reserved_peak, reserved)


def _samples(row: Row) -> bool:
    return row.start < row.end == len(row.task.token_ids)


def _input_ids(row: Row) -> list[int]:
    return [*row.task.token_ids[row.start : row.end], *[PADDING_TOKEN] * row.padding]
