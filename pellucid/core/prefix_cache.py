"""Finding the KV of a known prefix: a chain of hashes, one for each full block.

A key is BLAKE2b over tagged fields, so that no two different (salt, adapter, tokens) can be written as the same bytes;
the parent's key stands for everything before the block. A collision would show one user's text to another: the hash is
cryptographic, and 32 bytes long.
"""

from __future__ import annotations

import hashlib
import sys
from array import array

from pellucid.core.block_pool import BlockPool, KVCacheBlock, short_hash
from pellucid.core.request import Request
from pellucid.observability.bus import EventBus
from pellucid.observability.events import BlockCached

_DIGEST_SIZE = 32
_ROOT = b"pellucid-kv-root"  # BLAKE2b's personalisation, 16 bytes: the tag of each kind of key
_BLOCK = b"pellucid-kv-blok"


def root_hash(cache_salt: str | None = None, adapter: str | None = None) -> bytes:
    """The parent of every first block: requests share nothing unless salt and adapter are the same."""
    digest = hashlib.blake2b(digest_size=_DIGEST_SIZE, person=_ROOT)
    for tag, text in ((b"salt", cache_salt), (b"adapter", adapter)):
        encoded = b"" if text is None else text.encode("utf-8", "surrogatepass")
        digest.update(tag + bytes([text is not None]) + len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def block_hash(parent: bytes, token_ids: list[int]) -> bytes:
    """The key of the full block that holds token_ids (each below 2**32) after everything `parent` stands for."""
    tokens = array("I", token_ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return hashlib.blake2b(parent + tokens.tobytes(), digest_size=_DIGEST_SIZE, person=_BLOCK).digest()


class PrefixCache:
    """Looks blocks up and offers them. A request's full blocks are hashed once, as far as somebody asks.

    Blocks are offered when they are scheduled, before they are computed: in every layer all keys of a step are written
    before any attention reads them, so that two requests which arrive together share already in their first step.
    What turns out not to have been computed is withdrawn.
    """

    def __init__(self, pool: BlockPool, block_size: int, bus: EventBus) -> None:
        self._pool = pool
        self._block_size = block_size
        self._bus = bus

    def find(self, request: Request, max_tokens: int) -> list[KVCacheBlock]:
        """The blocks of the longest known prefix of at most max_tokens tokens."""
        found: list[KVCacheBlock] = []
        for index in range(max_tokens // self._block_size):
            block = self._pool.lookup(self._hash(request, index))
            if block is None:
                break
            found.append(block)
        return found

    def offer(self, request: Request, num_tokens: int) -> None:
        """Make the blocks that are full with num_tokens tokens findable."""
        first, end = request.num_registered_blocks, num_tokens // self._block_size
        for index in range(first, end):
            block, key = self._pool.blocks[request.block_table[index]], self._hash(request, index)
            parent = request.block_hashes[index - 1] if index else None
            if self._pool.register(block, key, parent) and self._bus.wants(BlockCached):
                self._bus.publish(
                    BlockCached(
                        request_id=request.request_id,
                        time=self._bus.now(),
                        block_id=block.block_id,
                        block_hash=short_hash(key),
                        parent_hash=short_hash(parent) if parent else None,
                    )
                )
        request.num_registered_blocks = max(first, end)

    def withdraw(self, request: Request) -> None:
        """Forget every block of this request, shared ones too: any of them may hold what broke it."""
        for block_id in request.block_table:
            self._pool.withdraw(self._pool.blocks[block_id])

    def _hash(self, request: Request, index: int) -> bytes:
        hashes, size = request.block_hashes, self._block_size
        while len(hashes) <= index:
            start = len(hashes) * size
            parent = hashes[-1] if hashes else root_hash(request.value.cache_salt)
            hashes.append(block_hash(parent, request.token_ids[start : start + size]))
        return hashes[index]
