"""Block tables of requests: what they hold, what they share, and whether more fits."""

from __future__ import annotations

from collections.abc import Sequence

from pellucid.core.block_accounting import num_blocks_for
from pellucid.core.block_pool import BlockPool, KVCacheBlock
from pellucid.core.prefix_cache import PrefixCache
from pellucid.core.request import Request
from pellucid.observability.bus import EventBus
from pellucid.observability.events import BlocksAllocated, BlocksFreed


class KVCacheManager:
    """Keeps request.block_table: block i holds the KV of tokens [i * block_size, (i + 1) * block_size).

    A table only grows while its request runs, and goes back as a whole. Knows nothing of queues and steps.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        bus: EventBus | None = None,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size={block_size}: a KV block holds at least one token")
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_prefix_queries = 0  # tokens asked for and found, once a request, since start
        self.num_prefix_hits = 0
        self._bus = bus if bus is not None else EventBus()
        self.pool = BlockPool(num_blocks, self._bus)
        self._prefixes = PrefixCache(self.pool, block_size, self._bus)

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        return num_blocks_for(num_tokens, self.block_size)

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Would a request of this many tokens in all fit into the whole pool? Its last token needs no KV."""
        return self.num_blocks_for(num_tokens - 1) <= self.pool.num_blocks

    def max_reusable_tokens(self, request: Request) -> int:
        """How many of its tokens may come from the cache."""
        if request.pooling == "mean":
            return 0  # the hidden states of all positions are needed, and the cache holds none
        if request.owes_prompt_logprobs:
            return len(request.prompt_logprobs)  # the logits of every later position are still to be computed
        return request.num_tokens - 1  # the last token is always recomputed: a cached prompt still needs its logits

    def get_computed_blocks(self, request: Request) -> list[KVCacheBlock]:
        """The cached blocks that a request which holds nothing could start with. Changes no ownership."""
        if not self.enable_prefix_caching:
            return []
        return self._prefixes.find(request, self.max_reusable_tokens(request))

    def num_blocks_taken(self, request: Request, computed_blocks: Sequence[KVCacheBlock]) -> int:
        """Free blocks that admission with all its tokens would use up: new ones, and cached ones nobody holds now."""
        num_new = self.num_blocks_for(request.num_tokens) - len(computed_blocks)
        return num_new + sum(block.ref_cnt == 0 for block in computed_blocks)

    def hit_ended_by(self, request: Request, computed_blocks: Sequence[KVCacheBlock]) -> str:
        """Why get_computed_blocks found no more: see `PrefixHit`."""
        if not self.enable_prefix_caching:
            return "disabled"
        if (len(computed_blocks) + 1) * self.block_size <= self.max_reusable_tokens(request):
            return "miss"
        if request.pooling == "mean":
            return "pooling"
        return "prompt_logprobs" if request.owes_prompt_logprobs else "last_token"

    def admit(self, request: Request, computed_blocks: Sequence[KVCacheBlock]) -> None:
        """Give a request that holds nothing the blocks of all its tokens, the cached ones first.

        All at once, though the tokens may be computed in chunks over many steps: what is admitted can compute all it
        has without another block. Raises ValueError, with nothing changed, when it does not fit (num_blocks_taken).
        """
        needed = self.num_blocks_taken(request, computed_blocks)
        if needed > self.pool.num_free_blocks:
            raise ValueError(f"{request.request_id} needs {needed} blocks, {self.pool.num_free_blocks} are free")
        for block in computed_blocks:  # before anything is allocated, which might evict them
            self.pool.share(block)
            request.block_table.append(block.block_id)
        request.num_registered_blocks = len(computed_blocks)
        request.num_computed_tokens = len(computed_blocks) * self.block_size
        if request.num_cached_tokens < 0:  # the first time
            request.num_cached_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
            if self.enable_prefix_caching:
                self.num_prefix_queries += request.num_tokens
                self.num_prefix_hits += request.num_computed_tokens
        self.allocate_slots(request, request.num_tokens, num_shared=len(computed_blocks))

    def allocate_slots(self, request: Request, num_tokens: int, num_shared: int = 0) -> bool:
        """Grow the table to hold num_tokens tokens. False, and nothing changed, when the pool has too few blocks."""
        table = request.block_table
        num_new = self.num_blocks_for(num_tokens) - len(table)
        if num_new > self.pool.num_free_blocks:
            return False
        for _ in range(num_new):
            table.append(self.pool.allocate(request.request_id).block_id)
        if self._bus.wants(BlocksAllocated):
            self._bus.publish(
                BlocksAllocated(
                    request_id=request.request_id,
                    time=self._bus.now(),
                    block_ids=table[len(table) - num_new - num_shared :],
                    num_shared=num_shared,
                )
            )
        return True

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Let others find the blocks that are full once num_tokens tokens are computed."""
        if self.enable_prefix_caching:
            self._prefixes.offer(request, num_tokens)

    def withdraw_blocks(self, request: Request) -> None:
        """Let nobody find this request's blocks any more: what is in them is in doubt."""
        self._prefixes.withdraw(request)

    def free(self, request: Request) -> None:
        """Give the table back, last block first, so that the start of a prefix is evicted last."""
        if request.block_table and self._bus.wants(BlocksFreed):
            self._bus.publish(
                BlocksFreed(request_id=request.request_id, time=self._bus.now(), block_ids=list(request.block_table))
            )
        for block_id in reversed(request.block_table):
            self.pool.release(self.pool.blocks[block_id])
        request.block_table = []  # a new list: by that, whoever keeps a copy of a table knows that it is over
        request.num_computed_tokens = 0
