"""Sizing the KV pool: what was asked for, what fits, and the words when it does not."""

from __future__ import annotations

import pytest

from pellucid.core.kv_budget import accelerator_kv_bytes, cpu_kv_bytes, format_bytes, plan_kv_pool

GIB = 2**30
PLAN = {"block_size": 16, "block_bytes": 2**20, "model_max_len": 32768, "max_num_seqs": 256}


def test_the_pool_takes_the_room_there_is() -> None:
    plan = plan_kv_pool(memory_bytes=10 * GIB + 5, **PLAN)
    assert (plan.num_blocks, plan.max_model_len, plan.memory_bytes) == (10240, 32768, 10 * GIB)
    assert plan.describe() == (
        "KV pool: 10240 blocks x 16 tokens x 64.0 KiB a token = 10.0 GiB; 5.0 requests of max_model_len=32768 at once"
    )


def test_the_pool_takes_no_more_than_can_be_used() -> None:
    plan = plan_kv_pool(memory_bytes=1000 * GIB, max_model_len=100, **{**PLAN, "max_num_seqs": 4})
    assert plan.num_blocks == 4 * 7


def test_without_a_wish_the_longest_request_shrinks_to_what_fits() -> None:
    assert plan_kv_pool(memory_bytes=GIB, **PLAN).max_model_len == 1024 * 16
    assert plan_kv_pool(memory_bytes=GIB, num_kv_blocks=64, **PLAN).max_model_len == 1024


def test_a_wish_that_does_not_fit_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        ValueError, match=r"max_model_len=32768 needs 2\.0 GiB of KV cache, 1\.0 GiB is free; "
    ) as error:
        plan_kv_pool(memory_bytes=GIB, max_model_len=32768, **PLAN)
    assert "the largest that fits is 16384 (or give --kv-cache-memory 2048MiB)" in str(error.value)
    assert plan_kv_pool(memory_bytes=2048 * 2**20, max_model_len=32768, **PLAN).max_model_len == 32768
    with pytest.raises(ValueError, match="or give --num-kv-blocks 2048"):
        plan_kv_pool(memory_bytes=GIB, max_model_len=32768, num_kv_blocks=10, **PLAN)
    assert plan_kv_pool(memory_bytes=GIB, max_model_len=32768, num_kv_blocks=2048, **PLAN).num_blocks == 2048


@pytest.mark.parametrize("max_model_len", [0, 1, -5, 32769])
def test_a_length_that_the_model_cannot_do_is_refused(max_model_len: int) -> None:
    with pytest.raises(ValueError, match=f"max_model_len={max_model_len}: the model can do 2 to 32768"):
        plan_kv_pool(memory_bytes=GIB, max_model_len=max_model_len, **PLAN)


@pytest.mark.parametrize("wish", [{"memory_bytes": 2**20 - 1}, {"memory_bytes": GIB, "num_kv_blocks": 0}])
def test_a_pool_without_a_block_is_refused(wish: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"a KV block of 16 tokens takes 1\.0 MiB"):
        plan_kv_pool(**wish, **PLAN)


def test_an_accelerator_that_is_full_has_nothing_to_give() -> None:
    assert accelerator_kv_bytes(10 * GIB, GIB, GIB, GIB, 0.5) == 0
    with pytest.raises(ValueError, match="memory_utilization=90"):
        accelerator_kv_bytes(10 * GIB, GIB, GIB, GIB, 90)


def test_a_share_of_the_available_memory() -> None:
    assert cpu_kv_bytes(10 * GIB, share=0.25) == 10 * GIB // 4


def test_sizes_read_as_people_write_them() -> None:
    assert [format_bytes(size) for size in (5, 2048, 3 * 2**20, 1.9 * GIB)] == [
        "5 bytes",
        "2.0 KiB",
        "3.0 MiB",
        "1.9 GiB",
    ]
