"""What the packed linear layers must compute, in numpy: the same quantisation of rows, products in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np

GGUF_FORMATS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
TOLERANCE = 2e-6  # of a float32 result, relative to the size of the terms that were added: a few roundings
_BLOCKS = {"q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210)}


@dataclass(frozen=True)
class Source:
    """A matrix as a checkpoint stores it, and its numbers."""

    format: str
    data: np.ndarray  # uint8, flat
    values: np.ndarray  # float32 [rows, columns]

    @property
    def part(self) -> tuple[np.ndarray, str, int, int]:
        return (self.data, self.format, *self.values.shape)


def make_source(format: str, rows: int, columns: int, seed: int = 0) -> Source:
    """Random weights in a checkpoint's format."""
    rng = np.random.default_rng(seed)
    if format in _BLOCKS:
        return _random_k_blocks(format, rows, columns, rng)
    values = rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(0.05)
    values[rng.random((rows, columns)) < 0.01] *= 6
    if format == "f32":
        return Source(format, values.view(np.uint8).reshape(-1), values)
    if format == "f16":
        halves = values.astype(np.float16)
        return Source(format, halves.view(np.uint8).reshape(-1), halves.astype(np.float32))
    if format == "bf16":
        rounded = to_bf16(values)
        return Source(format, (rounded.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1), rounded)
    kind = gguf.GGMLQuantizationType[format.upper()]
    data = gguf.quants.quantize(values, kind)
    return Source(format, data.reshape(-1), gguf.quants.dequantize(data, kind).reshape(rows, columns))


def _random_k_blocks(format: str, rows: int, columns: int, rng: np.random.Generator) -> Source:
    elements, size = _BLOCKS[format]
    data = rng.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    scales = rng.uniform(1e-4, 4e-4, (rows, columns // elements, 2)).astype(np.float16).view(np.uint8)
    if format == "q6_k":
        data[..., 208:210] = scales[..., :2]
    else:
        data[..., :4] = scales
    data = data.reshape(rows, -1)
    kind = gguf.GGMLQuantizationType[format.upper()]
    return Source(format, data.reshape(-1), gguf.quants.dequantize(data, kind).reshape(rows, columns))


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16 (nearest even), as float32."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def rotate(x: np.ndarray) -> np.ndarray:
    """Hadamard rotation in blocks of 64 to 1024, padded with zeros, in x's own precision and the kernels' order."""
    rows, columns = x.shape
    padded = np.zeros((rows, -(-columns // 64) * 64), x.dtype)
    padded[:, :columns] = x
    block = 64
    while block < 1024 and padded.shape[1] % (2 * block) == 0:
        block *= 2
    distance = 1
    while distance < block:
        pairs = padded.reshape(rows, -1, 2, distance)
        padded = np.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), 2).reshape(rows, -1)
        distance *= 2
        if distance == 64:
            padded = padded * x.dtype.type(0.125)
    return padded * np.sqrt(x.dtype.type(64) / x.dtype.type(block))


def quantize_rows(x: np.ndarray, group: int, largest_code: int = 127) -> np.ndarray:
    """x rounded to integers, one scale for every `group` elements, as float64, by the kernels' float32 arithmetic."""
    rows, columns = x.shape
    padded = np.zeros((rows, -(-columns // group) * group), np.float32)
    padded[:, :columns] = x
    groups = padded.reshape(rows, -1, group)
    largest = np.abs(groups).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest > 0, np.float32(largest_code) / largest, np.float32(0)).astype(np.float32)
    codes = np.rint(groups * inverse).astype(np.float64)
    scales = (largest / np.float32(largest_code)).astype(np.float64)
    return (codes * scales).reshape(rows, -1)[:, :columns]


def expected(x: np.ndarray, weights: np.ndarray, packed_format: str) -> tuple[np.ndarray, np.ndarray]:
    """(x @ weights.T in float64 for the packed format's rows, the size of the terms that were added).

    weights: what the packed matrix stands for, [rows, columns].
    """
    weights = weights.astype(np.float64)
    if packed_format == "f32":
        rows = x.astype(np.float64)
    elif packed_format == "bf16":
        rows = to_bf16(x).astype(np.float64)
    elif packed_format == "int8":
        rotated, rotated_weights = rotate(x), rotate(weights)
        rows = quantize_rows(rotated, rotated.shape[1])
        size = np.abs(rows) @ np.abs(rotated_weights).T
        if x.shape[1] % 64:
            # Rounding errors of the last block leak into its padding, where `weights` can't show them. Each side's part
            # there is at most the length of its error, sqrt(columns) half steps.
            steps = np.abs(rotated).max(1)[:, None] / 127 * np.abs(rotated_weights).max(1)[None] / 127
            size = size + rotated.shape[1] / 4 * steps / TOLERANCE
        return rows @ rotated_weights.T, size
    else:
        # a checkpoint's own formats are multiplied with activations of 15 bits, our own int4 with 8
        rows = quantize_rows(x, 32, 127 if packed_format == "int4" else 127 * 128)
        # scale * code and minimum are summed apart: their size is that of the group's largest weight
        padded = np.zeros((weights.shape[0], -(-weights.shape[1] // 32) * 32))
        padded[:, : weights.shape[1]] = np.abs(weights)
        largest = np.repeat(padded.reshape(weights.shape[0], -1, 32).max(-1), 32, 1)[:, : weights.shape[1]]
        return rows @ weights.T, np.abs(rows) @ (2 * largest).T
    return rows @ weights.T, np.abs(rows) @ np.abs(weights).T


def make_rows(num_rows: int, columns: int, seed: int = 1) -> np.ndarray:
    """Activations with outliers, a row of zeros where there is room."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_rows, columns), dtype=np.float32)
    x[:, columns // 3] *= 40
    if num_rows > 4:
        x[4] = 0
    return x


def apply(
    matrix: Any, x: np.ndarray, pool: Any, residual: np.ndarray | None = None, softcap: float = 0.0
) -> np.ndarray:
    out = np.full((x.shape[0], matrix.out_features), np.nan, np.float32)
    matrix.apply(np.ascontiguousarray(x), out, residual, softcap, pool)
    return out


def dequantize(matrix: Any, pool: Any) -> np.ndarray:
    out = np.full((matrix.out_features, matrix.in_features), np.nan, np.float32)
    matrix.dequantize_rows(np.arange(matrix.out_features), out, pool)
    return out
