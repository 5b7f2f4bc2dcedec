"""Memory for blocks that come next is taken before they are used, and what is written in them stays."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest
import torch

from pellucid.kernels.cpu import kernels as cpu_kernels
from pellucid.kernels.cpu.eager import EagerOperations
from pellucid.kernels.cpu.kernels import CpuKernels
from tests.kernels.cpu_batches import make_batch
from tests.kernels.native_module import native_or_skip
from tests.kernels.tiny_models import tiny_model

native = native_or_skip()

NUM_LAYERS, NUM_BLOCKS = 2, 8192
BLOCK_BYTES = native.kv_block_bytes(16, 2, 64, "bf16")  # 8 KiB a layer: the pool has 128 MiB


def wait_for(condition: Callable[[], bool]) -> None:
    """Patiently: the thread that is waited for runs only where nobody else wants the core."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def step_at(block: int) -> object:
    return EagerOperations(native, None).step_batch(make_batch([(0, 16)], [[block]]))


def test_memory_is_taken_so_far_ahead_and_no_further() -> None:
    caches = [native.KVCache(NUM_BLOCKS, 16, 2, 64, "bf16") for _ in range(NUM_LAYERS)]
    process = psutil.Process()
    before = process.memory_info().rss
    ahead = 4096
    pages = native.PagesAhead(caches, ahead * NUM_LAYERS * BLOCK_BYTES)
    wait_for(lambda: pages.num_blocks_ready >= ahead)
    taken = process.memory_info().rss - before
    assert 0.9 < taken / (ahead * NUM_LAYERS * BLOCK_BYTES) < 1.2
    pages.used(step_at(100))  # not worth waking up for
    time.sleep(0.05)
    assert pages.num_blocks_ready == ahead
    pages.used(step_at(1000))
    wait_for(lambda: pages.num_blocks_ready == 1001 + ahead)
    pages.used(step_at(NUM_BLOCKS - 1))
    wait_for(lambda: pages.num_blocks_ready == NUM_BLOCKS)
    pages.used(step_at(0))
    assert pages.num_blocks_ready == NUM_BLOCKS


def test_it_ends_while_it_is_at_work() -> None:
    for _ in range(20):
        native.PagesAhead([native.KVCache(NUM_BLOCKS, 16, 2, 64, "bf16")], NUM_BLOCKS * BLOCK_BYTES)


def test_what_a_step_writes_meanwhile_is_kept_and_its_blocks_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "_BYTES_OF_PAGES_AHEAD", 0)
    kernels = CpuKernels(torch.bfloat16, num_threads=2)
    model = tiny_model("llama", kernels)
    forward = kernels.compile_forward(model, 512, 8)
    batch = make_batch([(0, 64)], [[40, 41, 42, 43]], [list(range(64))])
    logits = forward(batch)
    wait_for(lambda: kernels._pages.num_blocks_ready == 44)
    assert torch.equal(forward(batch), logits)
    assert torch.equal(model(batch), logits)
