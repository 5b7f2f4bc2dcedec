"""Ragged batches for the kernel tests, made of (start, number of tokens) per request."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from pellucid.kernels.forward_batch import ForwardBatch

BLOCK_SIZE = 16


def block_tables(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """A table for each request of so many tokens, of blocks scattered over the pool."""
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed)).tolist()
    blocks = iter(order)
    return [list(itertools.islice(blocks, count)) for count in counts]


def make_batch(
    spans: Sequence[tuple[int, int]], tables: Sequence[Sequence[int]], token_ids: Sequence[Sequence[int]] | None = None
) -> ForwardBatch:
    """spans: each request's (first position, number of tokens) of this step; logits are wanted of each one's last.

    token_ids: each request's whole text; None: zeros.
    """
    positions, slots, input_ids, starts, logits = [], [], [], [0], []
    for index, ((start, count), table) in enumerate(zip(spans, tables, strict=True)):
        for position in range(start, start + count):
            positions.append(position)
            slots.append(table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE)
            input_ids.append(0 if token_ids is None else token_ids[index][position])
        starts.append(len(positions))
        logits.append(len(positions) - 1)
    width = max(len(table) for table in tables)

    def integers(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return ForwardBatch(
        input_ids=integers(input_ids),
        positions=integers(positions),
        query_start_loc=integers(starts),
        seq_lens=integers([start + count for start, count in spans]),
        slot_mapping=integers(slots),
        block_table=integers([[*table, *[0] * (width - len(table))] for table in tables]),
        logits_indices=integers(logits),
        block_size=BLOCK_SIZE,
    )
