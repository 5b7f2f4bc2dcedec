"""Drives a model by hand: requests with block tables from a shuffled pool, steps of any mixture of chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.models.model import Model


@dataclass
class PagedRequest:
    token_ids: list[int]
    block_table: list[int] = field(default_factory=list)
    num_computed: int = 0


class PagedRun:
    """A pool of blocks, handed out in an order that `seed` decides, and the forward passes over it."""

    def __init__(self, model: Model, num_blocks: int = 128, block_size: int = 16, seed: int = 0) -> None:
        self.model = model
        self.block_size = block_size
        model.allocate_kv_cache(num_blocks, block_size)
        self._free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()

    @torch.inference_mode()
    def step(self, shares: Sequence[tuple[PagedRequest, int]]) -> list[torch.Tensor]:
        """Compute so many more tokens of each request; returns the logits of all of them, [num_tokens, vocab] each."""
        batch = self.batch(shares)
        logits = self.model(batch)
        for request, num_tokens in shares:
            request.num_computed += num_tokens
        return list(logits.split([num_tokens for _, num_tokens in shares]))

    def batch(self, shares: Sequence[tuple[PagedRequest, int]]) -> ForwardBatch:
        input_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for request, num_tokens in shares:
            end = request.num_computed + num_tokens
            assert end <= len(request.token_ids)
            while len(request.block_table) * self.block_size < end:
                request.block_table.append(self._free.pop())
            span = range(request.num_computed, end)
            input_ids += request.token_ids[request.num_computed : end]
            positions += span
            slots += [request.block_table[p // self.block_size] * self.block_size + p % self.block_size for p in span]
            starts.append(len(input_ids))
        width = max(len(request.block_table) for request, _ in shares)
        tables = [[*request.block_table, *[0] * (width - len(request.block_table))] for request, _ in shares]
        return ForwardBatch(
            input_ids=_int32(input_ids),
            positions=_int32(positions),
            query_start_loc=_int32(starts),
            seq_lens=_int32([request.num_computed + num_tokens for request, num_tokens in shares]),
            slot_mapping=_int32(slots),
            block_table=_int32(tables),
            logits_indices=torch.arange(len(input_ids), dtype=torch.int32),
            block_size=self.block_size,
        )

    def run(self, token_ids: Sequence[int], chunks: Sequence[int]) -> torch.Tensor:
        """All logits of one sequence, computed alone in these chunks: [len(token_ids), vocab]."""
        request = PagedRequest(list(token_ids))
        assert sum(chunks) == len(token_ids)
        return torch.cat([self.step([(request, chunk)])[0] for chunk in chunks])

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The continuation by argmax."""
        request = PagedRequest(list(prompt))
        share = len(prompt)
        for _ in range(num_tokens):
            logits = self.step([(request, share)])[0]
            request.token_ids.append(int(logits[-1].argmax()))
            share = 1
        return request.token_ids[len(prompt) :]


def _int32(values: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
