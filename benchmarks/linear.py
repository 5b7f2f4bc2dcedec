"""The linear layers of two models by themselves: time, GB/s and GOP/s, as shares of what the machine gives in this run.

    python benchmarks/linear.py [--models smollm2,qwen3] [--formats bf16,int8,q4_0] [--rows 1,8,32,512] [--threads 2]

Random weights; the layers run one after another as in a step, without attention, norms or Python between them. The LM
head counts for at most 32 rows, as in serving. "read" is the share of the read bandwidth, "peak" that of the peak of
the format's dot products; the larger of the two says how far from the limit a row is. Peaks move while others use the
machine: they are measured again beside every row.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pellucid_native import _native as native

GGUF_BLOCKS = {
    "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q8_0": (32, 34),
    "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """Shapes [out_features, in_features] of a layer, in order, how many layers, and the LM head."""

    name: str
    num_layers: int
    layer: tuple[tuple[int, int], ...]
    head: tuple[int, int]


MODELS = {
    "smollm2": Model("SmolLM2-135M", 30, ((960, 576), (576, 576), (3072, 576), (576, 1536)), (49152, 576)),
    "qwen3": Model("Qwen3-0.6B", 28, ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)), (151936, 1024)),
}
LARGEST_HEAD_ROWS = 32


def pack(shape: tuple[int, int], format: str, isa: str, pool: Any, rng: np.random.Generator) -> Any:
    """A matrix of random weights. k-quants fall back to q4_0 or q8_0 where the columns are no multiple of 256."""
    rows, columns = shape
    if format in GGUF_BLOCKS and columns % GGUF_BLOCKS[format][0]:
        format = "q8_0" if format == "q6_k" else "q4_0"
    if format in GGUF_BLOCKS:
        elements, size = GGUF_BLOCKS[format]
        data = rng.integers(0, 32, rows * (columns // elements) * size, dtype=np.uint8)
        return native.pack_matrix([(data, format, rows, columns)], None, "", isa, pool)
    values = rng.integers(0x3C00, 0x3D00, rows * columns, dtype=np.uint16)  # bf16 around 0.01
    values[::2] |= 0x8000
    quantization = format if format.startswith("int") else ""
    return native.pack_matrix([(values.view(np.uint8), "bf16", rows, columns)], None, quantization, isa, pool)


def measure(layers: Sequence[Any], num_rows: int, pool: Any, repeats: int) -> float:
    native.time_linear(layers, num_rows, pool)
    return statistics.median(native.time_linear(layers, num_rows, pool) for _ in range(repeats))


def report(model: Model, format: str, num_rows_list: Sequence[int], isa: str, pool: Any) -> None:
    rng = np.random.default_rng(0)
    body = [pack(shape, format, isa, pool, rng) for _ in range(model.num_layers) for shape in model.layer]
    head = pack(model.head, "int8" if format == "int4" else format, isa, pool, rng)
    form = format if format in ("f32", "bf16") else "int8"
    for num_rows in num_rows_list:
        repeats = 9 if num_rows <= 8 else 5 if num_rows <= 64 else 3
        bandwidth = statistics.median(native.read_bandwidth(1 << 28, isa, pool) for _ in range(3))
        peak = max(native.peak_operations(form, isa, pool) for _ in range(3))
        head_rows = min(num_rows, LARGEST_HEAD_ROWS)
        body_s = measure(body, num_rows, pool, repeats)
        head_s = measure([head], head_rows, pool, repeats)
        seconds = body_s + head_s
        num_bytes = sum(m.num_bytes for m in body) + head.num_bytes
        sizes = [(m.out_features * m.in_features, num_rows) for m in body]
        operations = 2 * sum(size * n for size, n in [*sizes, (head.out_features * head.in_features, head_rows)])
        print(
            f"{model.name:13s} {format:5s} T={num_rows:<4d} {seconds * 1e3:8.2f} ms (head {head_s * 1e3:6.2f})"
            f" {num_bytes / seconds / 1e9:6.1f} GB/s = {100 * num_bytes / seconds / bandwidth:3.0f}% read"
            f" {operations / seconds / 1e9:7.0f} GOP/s = {100 * operations / seconds / peak:3.0f}% peak"
            f"   [{bandwidth / 1e9:.1f} GB/s, {peak / 1e9:.0f} GOP/s]",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default="smollm2,qwen3")
    parser.add_argument("--formats", default="bf16,int8,int4,q4_0,q4_1,q8_0,q4_k,q6_k")
    parser.add_argument("--rows", default="1,8,32,512")
    parser.add_argument("--threads", type=int, default=0, help="0: all physical cores")
    parser.add_argument("--isa", default=native.available_isas()[-1])
    args = parser.parse_args()
    pool = native.ThreadPool(args.threads)
    print(f"isa {args.isa}, {pool.num_threads} threads")
    for name in args.models.split(","):
        for format in args.formats.split(","):
            report(MODELS[name], format, [int(n) for n in args.rows.split(",")], args.isa, pool)


if __name__ == "__main__":
    main()
