"""The KV pool: whatever requests do, every block has exactly one owner."""

from __future__ import annotations

import pytest
from fake_engine import assert_pool_is_consistent, make_request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pellucid.core.block_pool import BlockPool
from pellucid.core.kv_cache_manager import KVCacheManager
from pellucid.core.request import Request

BLOCK_SIZE = 4


class KVCacheMachine(RuleBasedStateMachine):
    """Requests over a tiny alphabet (so that prefixes coincide) come, grow, fail and go, in too small a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVCacheManager(num_blocks=12, block_size=BLOCK_SIZE)
        self.live: list[Request] = []
        self.contents: dict[int, list[int]] = {}  # what was written to each block
        self.num_made = 0

    def _write(self, request: Request, num_tokens: int) -> None:
        """As a forward pass would: a block that others can see must never change."""
        for position in range(request.num_computed_tokens, num_tokens):
            block_id = request.block_table[position // BLOCK_SIZE]
            assert self.kv.pool.blocks[block_id].ref_cnt == 1, "a shared block is written"
            content = self.contents.setdefault(block_id, [])
            del content[position % BLOCK_SIZE :]
            content.append(request.token_ids[position])
        request.num_computed_tokens = num_tokens

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=26),
        salt=st.sampled_from([None, "a"]),
        computed_share=st.floats(0, 1),
    )
    def admit(self, tokens: list[int], salt: str | None, computed_share: float) -> None:
        self.num_made += 1
        request = Request(make_request(f"r{self.num_made}", tokens, cache_salt=salt))
        computed = self.kv.get_computed_blocks(request)
        assert len(computed) * BLOCK_SIZE < len(tokens), "the last token is always computed"
        for index, block in enumerate(computed):
            assert self.contents[block.block_id] == tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
        if self.kv.num_blocks_taken(request, computed) > self.kv.num_free_blocks:
            before = list(self.kv.pool.free_blocks())
            with pytest.raises(ValueError, match="blocks"):
                self.kv.admit(request, computed)
            assert list(self.kv.pool.free_blocks()) == before
            assert request.block_table == []
            return
        self.kv.admit(request, computed)
        self.live.append(request)
        assert request.num_computed_tokens == len(computed) * BLOCK_SIZE
        end = request.num_computed_tokens + round(computed_share * (len(tokens) - request.num_computed_tokens))
        self.kv.cache_blocks(request, end)  # as the scheduler does: before it is written
        self._write(request, end)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 1))
    def decode(self, data: st.DataObject, token: int) -> None:
        request = data.draw(st.sampled_from(self.live))
        request.token_ids.append(token)
        if not self.kv.allocate_slots(request, request.num_tokens):
            assert self.kv.num_free_blocks == 0
            request.token_ids.pop()
            return
        self.kv.cache_blocks(request, request.num_tokens)
        self._write(request, request.num_tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), failed=st.booleans())
    def free(self, data: st.DataObject, failed: bool) -> None:
        request = data.draw(st.sampled_from(self.live))
        table = list(request.block_table)
        if failed:
            self.kv.withdraw_blocks(request)
        self.kv.free(request)
        self.live.remove(request)
        if failed:
            assert all(self.kv.pool.blocks[block_id].block_hash is None for block_id in table)

    @invariant()
    def every_block_has_exactly_one_owner(self) -> None:
        assert_pool_is_consistent(self.kv, self.live)

    @invariant()
    def a_cached_block_is_full(self) -> None:
        for block in self.kv.pool.blocks:
            if block.block_hash is not None:
                assert len(self.contents[block.block_id]) == BLOCK_SIZE

    def teardown(self) -> None:
        for request in self.live:
            self.kv.free(request)
        assert_pool_is_consistent(self.kv, [])
        assert self.kv.num_free_blocks == 12, "no leak at idle"


test_every_block_has_exactly_one_owner = KVCacheMachine.TestCase
test_every_block_has_exactly_one_owner.settings = settings(max_examples=60, stateful_step_count=40)


def test_empty_blocks_are_used_before_cached_ones_and_those_least_recently_used_first() -> None:
    pool = BlockPool(4)
    blocks = [pool.allocate("r") for _ in range(4)]
    for index in (2, 0, 3):
        pool.register(blocks[index], bytes([index]))
        pool.release(blocks[index])
    pool.release(blocks[1])  # empty, and released last
    assert [block.block_id for block in pool.free_blocks()] == [1, 2, 0, 3]
    pool.share(blocks[2])  # used again: the most recent one now
    pool.release(blocks[2])
    assert [pool.allocate("r").block_id for _ in range(4)] == [1, 0, 3, 2]
    assert all(pool.lookup(bytes([index])) is None for index in range(4)), "what is reused cannot be found any more"
    with pytest.raises(IndexError, match="no free KV block"):
        pool.allocate("r")


def test_a_fresh_pool_hands_out_blocks_in_order() -> None:
    pool = BlockPool(3)
    assert [pool.allocate("r").block_id for _ in range(3)] == [0, 1, 2]


def test_misuse_of_the_pool_is_an_error_at_once() -> None:
    pool = BlockPool(2)
    block = pool.allocate("r")
    pool.release(block)
    with pytest.raises(ValueError, match="more often than it was taken"):
        pool.release(block)
    with pytest.raises(ValueError, match="cannot be cached"):
        pool.register(block, b"key")
    with pytest.raises(ValueError, match="num_blocks=0"):
        BlockPool(0)


def test_one_content_has_one_cached_block() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate("a"), pool.allocate("b")
    assert pool.register(first, b"key")
    assert not pool.register(second, b"key")
    assert pool.lookup(b"key") is first
    assert second.block_hash is None


def test_a_withdrawn_block_goes_to_the_empty_ones() -> None:
    pool = BlockPool(3)
    blocks = [pool.allocate("r") for _ in range(3)]
    for index, block in enumerate(blocks):
        pool.register(block, bytes([index]))
        pool.release(block)
    pool.withdraw(blocks[1])
    assert pool.num_evictable_blocks == 2
    assert [block.block_id for block in pool.free_blocks()] == [1, 0, 2]
    assert pool.lookup(b"\x01") is None
