"""Cuts a ragged batch into work items of equal shape, once a step for all layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pellucid.kernels.forward_batch import ForwardBatch

KEY_TILE = 256  # keys [j * KEY_TILE, (j + 1) * KEY_TILE) of a sequence are reduced together, always

# a query joins the smallest kind of item that holds its request's whole share of the step, else the largest;
# (positions in an item, items computed together)
ITEM_KINDS = ((1, 32), (8, 16), (64, 8))


@dataclass(frozen=True)
class _Item:
    """Queries [first_row, first_row + num_positions) of the batch, at absolute positions from first_position on."""

    request: int
    first_row: int
    first_position: int
    num_positions: int

    @property
    def last_position(self) -> int:
        return self.first_position + self.num_positions - 1


class ItemGroup:
    """A items of P positions each, those that reach furthest first.

    rows: [A, P] rows of the batch (0 where an item is shorter than P). positions: [A, P], -1 where it is shorter.
    """

    def __init__(self, items: list[_Item], positions_per_item: int, batch: ForwardBatch) -> None:
        self._items = sorted(items, key=lambda item: item.last_position // KEY_TILE, reverse=True)
        self._batch = batch
        self._key_slots: dict[int, torch.Tensor] = {}
        device = batch.seq_lens.device
        offsets = torch.arange(positions_per_item)
        counts = torch.tensor([item.num_positions for item in self._items])[:, None]
        rows = torch.tensor([item.first_row for item in self._items])[:, None] + offsets
        positions = torch.tensor([item.first_position for item in self._items])[:, None] + offsets
        present = offsets < counts
        self.rows = rows.where(present, torch.zeros_like(rows)).to(device)
        self.positions = positions.where(present, torch.full_like(positions, -1)).to(device)
        self.present = present.to(device)
        self.present_rows = rows[present].to(device)
        self._requests = torch.tensor([item.request for item in self._items], device=device)
        self._seq_lens = batch.seq_lens.index_select(0, self._requests).long()[:, None]
        self._block_table = batch.block_table.index_select(0, self._requests).long()

    def __len__(self) -> int:
        return len(self._items)

    def key_tiles(self, sliding_window: int | None) -> Iterator[tuple[int, slice]]:
        """(j, items that may see a key of tile j), ascending. An item that sees none of them may be among them:
        a tile with all its keys masked changes no bit."""
        first_tiles = [
            0 if sliding_window is None else max(0, item.first_position - sliding_window + 1) // KEY_TILE
            for item in self._items
        ]
        last_tiles = [item.last_position // KEY_TILE for item in self._items]
        for tile in range(min(first_tiles), last_tiles[0] + 1):
            seeing = [index for index in range(len(self._items)) if first_tiles[index] <= tile <= last_tiles[index]]
            if seeing:
                yield tile, slice(seeing[0], seeing[-1] + 1)

    def key_positions(self, tile: int) -> torch.Tensor:
        """[KEY_TILE], absolute."""
        return torch.arange(tile * KEY_TILE, (tile + 1) * KEY_TILE, device=self._requests.device)

    def key_slots(self, tile: int) -> torch.Tensor:
        """[A, KEY_TILE]: where the keys of the tile lie in the cache; anywhere in it for those that don't exist."""
        slots = self._key_slots.get(tile)
        if slots is None:
            positions = self.key_positions(tile)
            block_size = self._batch.block_size
            blocks = (positions // block_size).clamp(max=self._block_table.shape[1] - 1)
            slots = self._block_table.index_select(1, blocks) * block_size + positions % block_size
            self._key_slots[tile] = slots
        return slots

    def missing_keys(self, tile: int) -> torch.Tensor:
        """bool [A, KEY_TILE]: positions past the sequence, whose slots hold whatever was left there."""
        return self.key_positions(tile)[None, :] >= self._seq_lens


class AttentionPlan:
    """The groups of one ForwardBatch. Valid as long as the batch's tensors keep their contents."""

    def __init__(self, batch: ForwardBatch) -> None:
        self.batch = batch
        self.groups = [
            ItemGroup(items[first : first + items_at_once], positions_per_item, batch)
            for (positions_per_item, items_at_once), items in _cut(batch).items()
            for first in range(0, len(items), items_at_once)
        ]


def _cut(batch: ForwardBatch) -> dict[tuple[int, int], list[_Item]]:
    starts = batch.query_start_loc.tolist()
    seq_lens = batch.seq_lens.tolist()
    by_kind: dict[tuple[int, int], list[_Item]] = {kind: [] for kind in ITEM_KINDS}
    for request, seq_len in enumerate(seq_lens):
        num_queries = starts[request + 1] - starts[request]
        kind = next((kind for kind in ITEM_KINDS if num_queries <= kind[0]), ITEM_KINDS[-1])
        for offset in range(0, num_queries, kind[0]):
            by_kind[kind].append(
                _Item(
                    request=request,
                    first_row=starts[request] + offset,
                    first_position=seq_len - num_queries + offset,
                    num_positions=min(kind[0], num_queries - offset),
                )
            )
    return by_kind
