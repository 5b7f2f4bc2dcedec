"""Paged attention in plain torch, in float32, a tile of keys after the other."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pellucid.kernels.torch.attention_plan import KEY_TILE, AttentionPlan, ItemGroup
from pellucid.kernels.torch.matmul import InvariantMatmul

ONES = 8  # columns of ones beside the values: the softmax's denominator is one of them. Eight, to keep rows aligned


class KVCache(NamedTuple):
    """One layer's pool: [num_blocks, block_size, num_kv_heads, head_dim] each."""

    k: torch.Tensor
    v: torch.Tensor


class PagedAttention:
    """Queries of one layer against its pool (PagedAttention, Kwon et al. 2023; online softmax, Milakov et al. 2018).

    A query's result is built up over the tiles of KEY_TILE keys at fixed absolute positions, in ascending order, each
    by two products of fixed K and N. Tiles that a query cannot see leave its state as it was, to the bit; so neither
    the queries beside it nor the way its prompt was cut into chunks can show.
    """

    def __init__(
        self,
        matmul: InvariantMatmul,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        sliding_window: int | None,
        softcap: float | None,
    ) -> None:
        self._matmul = matmul
        self._num_kv_heads = num_kv_heads
        self._group_size = num_heads // num_kv_heads
        self._head_dim = head_dim
        self._scale = scale
        self._sliding_window = sliding_window
        self._softcap = softcap

    def __call__(self, q: torch.Tensor, kv_cache: KVCache, plan: AttentionPlan) -> torch.Tensor:
        """q: [T, num_heads * head_dim] -> the same."""
        out = torch.empty_like(q)
        for group in plan.groups:
            values = self._attend(group, self._items_of(q, group), kv_cache)
            out[group.present_rows] = self._rows_of(values, group).to(q.dtype)
        return out

    def _attend(self, group: ItemGroup, q: torch.Tensor, kv_cache: KVCache) -> torch.Tensor:
        """q: float32 [A, num_kv_heads, M, head_dim] -> the same, M the padded number of an item's rows."""
        row_positions = self._row_positions(group, q.shape[2])
        running_max = q.new_full((*q.shape[:3], 1), -torch.inf)
        running = q.new_zeros(*q.shape[:3], self._head_dim + ONES)
        for tile, items in group.key_tiles(self._sliding_window):
            slots = group.key_slots(tile)[items]
            scores = self._batched(q[items], self._keys(kv_cache.k, slots).transpose(2, 3)) * self._scale
            if self._softcap is not None:
                scores = torch.tanh(scores / self._softcap) * self._softcap
            visible = self._visible(row_positions[items], group.key_positions(tile))
            scores = torch.where(visible, scores, -torch.inf)

            old_max = running_max[items]
            new_max = torch.maximum(old_max, scores.amax(-1, keepdim=True))
            shift = torch.where(new_max == -torch.inf, 0.0, new_max)  # a row that has seen no key yet
            values = self._values(kv_cache.v, slots, group.missing_keys(tile)[items])
            added = self._batched(torch.exp(scores - shift), values)
            running[items] = running[items] * torch.exp(old_max - shift) + added
            running_max[items] = new_max
        return running[..., : self._head_dim] / running[..., self._head_dim : self._head_dim + 1]

    def _visible(self, row_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """bool [A, 1, M, KEY_TILE]. Padding rows have position -1 and see nothing."""
        rows = row_positions[:, None, :, None]
        visible = key_positions <= rows
        if self._sliding_window is not None:
            visible &= key_positions > rows - self._sliding_window
        return visible

    def _batched(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """[A, heads, M, K] @ [A, heads, K, N]."""
        return self._matmul.batched(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])

    def _keys(self, cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """float32 [A, num_kv_heads, KEY_TILE, head_dim], contiguous."""
        return self._gather(cache, slots).float().contiguous()

    def _values(self, cache: torch.Tensor, slots: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:
        """float32 [A, num_kv_heads, KEY_TILE, head_dim + ONES]. Missing ones are 0: their weight is 0, but 0 * nan
        is not, and what a failed request left in a block may be anything."""
        gathered = self._gather(cache, slots).masked_fill(missing[:, None, :, None], 0.0)
        values = torch.ones(*gathered.shape[:3], self._head_dim + ONES, device=cache.device)
        values[..., : self._head_dim] = gathered
        return values

    def _gather(self, cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        rows = cache.flatten(0, 1).index_select(0, slots.flatten())
        return rows.view(slots.shape[0], KEY_TILE, self._num_kv_heads, self._head_dim).transpose(1, 2)

    # between the batch's rows and the items' [A, num_kv_heads, M, head_dim]: row p * group_size + g of kv head h is
    # query head h * group_size + g of the item's position p

    def _items_of(self, q: torch.Tensor, group: ItemGroup) -> torch.Tensor:
        num_items, num_positions = group.rows.shape
        heads = (num_items, num_positions, self._num_kv_heads, self._group_size, self._head_dim)
        items = q.index_select(0, group.rows.flatten()).float().view(heads).transpose(1, 2).flatten(2, 3)
        padding = self._matmul.padded_rows(items.shape[2]) - items.shape[2]
        return torch.nn.functional.pad(items, (0, 0, 0, padding)).contiguous()

    def _row_positions(self, group: ItemGroup, num_rows: int) -> torch.Tensor:
        positions = group.positions.repeat_interleave(self._group_size, dim=1)
        return torch.nn.functional.pad(positions, (0, num_rows - positions.shape[1]), value=-1)

    def _rows_of(self, values: torch.Tensor, group: ItemGroup) -> torch.Tensor:
        num_positions = group.rows.shape[1]
        rows = values[:, :, : num_positions * self._group_size]
        rows = rows.unflatten(2, (num_positions, self._group_size)).transpose(1, 2).flatten(2)
        return rows[group.present]
