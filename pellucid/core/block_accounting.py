"""What paging wastes and what it saves: tokens reserved against tokens used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reservation:
    """Memory in units of one token's KV. internal_fragmentation_tokens: reserved, but never to be used by anybody."""

    reserved_tokens: int
    allocated_tokens: int

    @property
    def internal_fragmentation_tokens(self) -> int:
        return self.reserved_tokens - self.allocated_tokens

    @property
    def utilization(self) -> float:
        """Used share of what is reserved; 1.0 when nothing is."""
        return self.allocated_tokens / self.reserved_tokens if self.reserved_tokens else 1.0


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def paged_reservation(request_tokens: Sequence[int], block_size: int) -> Reservation:
    """Each request holds whole blocks: at most block_size - 1 tokens of it are wasted."""
    num_blocks = sum(num_blocks_for(num_tokens, block_size) for num_tokens in request_tokens)
    return Reservation(num_blocks * block_size, sum(request_tokens))


def contiguous_reservation(request_tokens: Sequence[int]) -> Reservation:
    """Each request holds a slot as long as the longest one, as a static batch does."""
    return Reservation(max(request_tokens, default=0) * len(request_tokens), sum(request_tokens))
