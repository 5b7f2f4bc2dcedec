"""Attention, row operations and sampling passes by themselves, as shares of what the machine gives in this run.

    python benchmarks/kernels.py [--threads 2] [--isa avx512bf16] [--quick]

Decode attention is bound by the bytes of keys and values it reads: "read" is its share of the read bandwidth measured
beside it. Prefill attention is bound by arithmetic: "peak" is its share of the peak of bf16 (or float32) dot products.
Sampling passes are given in microseconds a row. The linear layers have a benchmark of their own (linear.py).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from pellucid_native import _native as native

from pellucid.kernels.cpu.kernels import CpuKernels
from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.sampling.native_vocabulary import NativeVocabularyOps
from pellucid.sampling.vocabulary import Draw

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Shape:
    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int


SHAPES = (Shape("SmolLM2-135M", 9, 3, 64), Shape("Qwen3-0.6B", 16, 8, 128))


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The median, after one call that is not counted."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def one_request(start: int, count: int) -> ForwardBatch:
    """Positions start .. start + count of one request whose blocks lie in order."""

    def integers(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    positions = torch.arange(start, start + count, dtype=torch.int32)
    return ForwardBatch(
        input_ids=torch.zeros(count, dtype=torch.int32),
        positions=positions,
        query_start_loc=integers(0, count),
        seq_lens=integers(start + count),
        slot_mapping=positions.clone(),
        block_table=torch.arange(-(-(start + count) // BLOCK_SIZE), dtype=torch.int32)[None],
        logits_indices=integers(count - 1),
        block_size=BLOCK_SIZE,
    )


def attention(kernels: CpuKernels, shape: Shape, start: int, count: int, kv_dtype: str, repeats: int) -> None:
    # As many layers as exceed the last-level cache, so that decode reads memory as a model does.
    tokens = start + count
    bytes_a_layer = (
        kernels.kv_bytes_per_block(BLOCK_SIZE, shape.num_kv_heads, shape.head_dim, kv_dtype) * tokens // BLOCK_SIZE
    )
    num_layers = max(1, min(64, (96 << 20) // bytes_a_layer)) if count == 1 else 1
    caches = kernels.allocate_kv_cache(
        num_layers, -(-tokens // BLOCK_SIZE), BLOCK_SIZE, shape.num_kv_heads, shape.head_dim, kv_dtype
    )
    heads = (shape.num_heads, shape.num_kv_heads, shape.head_dim)
    qkv = torch.randn(tokens, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim)
    cos_sin = torch.randn(tokens, shape.head_dim)
    for cache in caches:
        kernels.rope_and_cache(qkv, cache, one_request(0, tokens), cos_sin, *heads)
    batch, q = one_request(start, count), torch.randn(count, shape.num_heads * shape.head_dim)

    def all_layers() -> None:
        for cache in caches:
            kernels.paged_attention(q, cache, batch, *heads, shape.head_dim**-0.5)

    elapsed = seconds(all_layers, repeats) / num_layers
    pool = kernels.thread_pool
    if count == 1:
        rate = bytes_a_layer / elapsed
        share = f"{rate / 1e9:6.1f} GB/s, {rate / native.read_bandwidth(256 << 20, kernels.isa, pool):4.0%} read"
    else:
        visible = count * start + count * (count + 1) // 2
        rate = 4 * visible * shape.num_heads * shape.head_dim / elapsed
        form = "bf16" if kv_dtype != "f32" else "f32"
        share = f"{rate / 1e9:6.1f} GFLOP/s, {rate / native.peak_operations(form, kernels.isa, pool):4.0%} peak"
    print(f"attention {shape.name:13} kv {kv_dtype:4} {count:5} queries at {start:5}: {elapsed * 1e6:9.1f} us  {share}")


def sampling(kernels: CpuKernels, vocab_size: int, num_rows: int, repeats: int) -> None:
    ops = NativeVocabularyOps(kernels)
    logits = np.random.default_rng(0).standard_normal((num_rows, vocab_size), np.float32) * 3
    rows = range(num_rows)

    def draws(top_k: int, top_p: float) -> list[Draw]:
        return [Draw(row, 1.0, top_k, top_p, 0.0, 0.3) for row in rows]

    passes: dict[str, Callable[[], object]] = {
        "argmax": lambda: ops.argmax(logits),
        "log_normalizers": lambda: ops.log_normalizers(logits, rows),
        "most_likely 20": lambda: ops.most_likely(logits, rows, [20] * num_rows),
        "draw": lambda: ops.draw(logits, draws(0, 1.0)),
        "draw top_k 50": lambda: ops.draw(logits, draws(50, 1.0)),
        "draw top_p 0.95": lambda: ops.draw(logits, draws(0, 0.95)),
    }
    for name, call in passes.items():
        microseconds = seconds(call, repeats) / num_rows * 1e6
        print(f"sampling {name:16} {num_rows:3} rows of {vocab_size}: {microseconds:7.1f} us a row")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=None, help="one a physical core")
    parser.add_argument("--isa", default=None, choices=native.available_isas())
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it run at all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels = CpuKernels(torch.bfloat16, options.threads, options.isa)
    print(f"{kernels.isa}, {kernels.num_threads} threads")
    repeats = 2 if options.quick else 9
    contexts, prefills = ((127, 1023), (128,)) if options.quick else ((127, 1023, 8191), (128, 2048))
    for shape in SHAPES[:1] if options.quick else SHAPES:
        for kv_dtype in ("bf16", "int8"):
            for context in contexts:
                attention(kernels, shape, context, 1, kv_dtype, repeats)
            for length in prefills:
                attention(kernels, shape, 0, length, kv_dtype, repeats)
    for num_rows in (1, 32):
        sampling(kernels, 49152, num_rows, repeats)


if __name__ == "__main__":
    main()
