"""Blocks of the KV cache: who owns each, and which is reused next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pellucid.observability.bus import EventBus
from pellucid.observability.events import BlockEvicted, BlockWithdrawn


class KVCacheBlock:
    """block_id: its place in the KV tensors. ref_cnt: how many running requests' tables hold it.

    block_hash: set while the prefix cache can find it; parent_hash is then that of the block before it, None for the
    first of a prompt. num_hits: how often it was given to a request since then. prev, next: neighbours on the free
    list, None when not on it.
    """

    __slots__ = ("block_hash", "block_id", "next", "num_hits", "parent_hash", "prev", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.parent_hash: bytes | None = None
        self.num_hits = 0
        self.prev: KVCacheBlock | None = None
        self.next: KVCacheBlock | None = None

    def __repr__(self) -> str:
        key = self.block_hash.hex()[:8] if self.block_hash else None
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, block_hash={key})"


def short_hash(block_hash: bytes) -> str:
    """As events write it."""
    return block_hash[:8].hex()


class FreeBlockList:
    """A doubly linked list threaded through the blocks: every operation is O(1), also from the middle."""

    def __init__(self, blocks: Iterable[KVCacheBlock]) -> None:
        self._head = KVCacheBlock(-1)  # sentinels: no insertion or removal meets an end
        self._tail = KVCacheBlock(-1)
        self._head.next, self._tail.prev = self._tail, self._head
        self.num_blocks = 0
        for block in blocks:
            self.append(block)

    def append(self, block: KVCacheBlock) -> None:
        self._insert(self._tail.prev, block, self._tail)

    def appendleft(self, block: KVCacheBlock) -> None:
        self._insert(self._head, block, self._head.next)

    def popleft(self) -> KVCacheBlock:
        """Raises IndexError when there is none."""
        block = self._head.next
        if block is self._tail or block is None:
            raise IndexError("no free KV block")
        self.remove(block)
        return block

    def remove(self, block: KVCacheBlock) -> None:
        """Raises ValueError when the block is not on the list."""
        before, after = block.prev, block.next
        if before is None or after is None:
            raise ValueError(f"{block} is not on the free list")
        before.next, after.prev = after, before
        block.prev = block.next = None
        self.num_blocks -= 1

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._head.next
        while block is not None and block is not self._tail:
            yield block
            block = block.next

    def _insert(self, before: KVCacheBlock | None, block: KVCacheBlock, after: KVCacheBlock | None) -> None:
        if before is None or after is None or block.next is not None:
            raise ValueError(f"{block} is on the free list already")
        before.next = after.prev = block
        block.prev, block.next = before, after
        self.num_blocks += 1


class BlockPool:
    """A block is owned by exactly one of: the tables of running requests (ref_cnt >= 1, one for each table), the prefix
    cache with ref_cnt 0 (evictable, at the back of the free list, least recently used first), or the plain free list
    (no hash; at the front, so that nothing cached is evicted while an empty block is left).

    A block that is shared or cached is full and never written again; a hash leads to one block only.
    """

    def __init__(self, num_blocks: int, bus: EventBus | None = None) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks}: a KV pool needs at least one block")
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.num_evictable_blocks = 0  # on the free list with a hash
        self.num_evictions = 0
        self.num_releases = 0  # grows when blocks come back: who waits for blocks need not look again before that
        self._free = FreeBlockList(self.blocks)
        self._by_hash: dict[bytes, KVCacheBlock] = {}
        self._bus = bus if bus is not None else EventBus()

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be allocated now: empty ones and evictable ones."""
        return self._free.num_blocks

    def free_blocks(self) -> Iterator[KVCacheBlock]:
        """In the order of reuse."""
        return iter(self._free)

    def lookup(self, block_hash: bytes) -> KVCacheBlock | None:
        return self._by_hash.get(block_hash)

    def allocate(self, request_id: str) -> KVCacheBlock:
        """A block of one's own to write to, with ref_cnt 1. Raises IndexError when there is none."""
        block = self._free.popleft()
        if block.block_hash is not None:
            self._bus.publish(
                BlockEvicted(
                    time=self._bus.now(),
                    block_id=block.block_id,
                    block_hash=short_hash(block.block_hash),
                    for_request_id=request_id,
                )
            )
            self.num_evictions += 1
            del self._by_hash[block.block_hash]
            block.block_hash = None
            self.num_evictable_blocks -= 1
        block.ref_cnt = 1
        return block

    def share(self, block: KVCacheBlock) -> None:
        """One more table holds this cached block."""
        if block.ref_cnt == 0:
            self._free.remove(block)
            self.num_evictable_blocks -= 1
        block.ref_cnt += 1
        block.num_hits += 1

    def release(self, block: KVCacheBlock) -> None:
        """One table fewer holds it. Raises ValueError when no table did."""
        if block.ref_cnt < 1:
            raise ValueError(f"{block} is released more often than it was taken")
        block.ref_cnt -= 1
        if block.ref_cnt:
            return
        self.num_releases += 1
        if block.block_hash is None:
            self._free.appendleft(block)
        else:
            self._free.append(block)
            self.num_evictable_blocks += 1

    def register(self, block: KVCacheBlock, block_hash: bytes, parent_hash: bytes | None = None) -> bool:
        """Let others find this full block. False when another block with the same content is known already."""
        if block_hash in self._by_hash:
            return False
        if block.block_hash is not None or block.ref_cnt < 1:
            raise ValueError(f"{block} cannot be cached: only a block in use, once")
        block.block_hash, block.parent_hash, block.num_hits = block_hash, parent_hash, 0
        self._by_hash[block_hash] = block
        return True

    def cached_blocks(self) -> list[KVCacheBlock]:
        """What can be found: first what can be evicted, in the order in which it would be, then what is in use."""
        evictable = [block for block in self._free if block.block_hash is not None]
        return evictable + [block for block in self._by_hash.values() if block.ref_cnt]

    def withdraw(self, block: KVCacheBlock) -> None:
        """Let nobody find it any more; the tables that hold it keep it."""
        if block.block_hash is None:
            return
        if self._bus.wants(BlockWithdrawn):
            self._bus.publish(
                BlockWithdrawn(time=self._bus.now(), block_id=block.block_id, block_hash=short_hash(block.block_hash))
            )
        del self._by_hash[block.block_hash]
        block.block_hash = None
        if block.ref_cnt == 0:
            self.num_evictable_blocks -= 1
            self._free.remove(block)
            self._free.appendleft(block)
