"""From a checkpoint's matrices to the compiled module's packed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pellucid.kernels.cpu.native import NATIVE_BLOCK_FORMATS
from pellucid.kernels.int4 import INT4
from pellucid.kernels.weights import LinearWeight, QuantizedTensor, WeightSource

_DENSE_FORMATS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}

Part = tuple[np.ndarray, str, int, int]  # bytes, format, rows, columns


class CpuLinearWeight(LinearWeight):
    """matrix: a pellucid_native.PackedMatrix, its bias inside."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.out_features = matrix.out_features
        self.in_features = matrix.in_features
        self.num_bytes = matrix.num_bytes
        self.format: str = matrix.format


def native_part(source: WeightSource, dtype: torch.dtype, quantization: str | None) -> Part:
    """A matrix as the packer takes it: blocks it knows as they are, the rest dense.

    Dense weights are rounded to `dtype`, unless they are to be quantised: then from what the checkpoint has.
    """
    if len(source.shape) != 2:
        raise ValueError(f"a matrix has two dimensions, not {tuple(source.shape)}")
    rows, columns = source.shape
    if isinstance(source, QuantizedTensor):
        block_format = source.ggml_type.lower()
        keeps = quantization is None and dtype != torch.float32 and block_format in NATIVE_BLOCK_FORMATS
        if keeps or (quantization == "int4" and source.ggml_type == INT4):
            data = np.ascontiguousarray(source.data).reshape(-1).view(np.uint8)
            return data, block_format, rows, columns
        source = source.dequantize()
    if source.dtype not in _DENSE_FORMATS:
        raise ValueError(f"weights of dtype {source.dtype} are not supported by the CPU kernels")
    if quantization is None:
        source = source.to(dtype)
    data = source.detach().contiguous().view(torch.uint8).reshape(-1).numpy()
    return data, _DENSE_FORMATS[source.dtype], rows, columns


def pack(
    native: Any,
    executor: Any,
    parts: Sequence[WeightSource],
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    quantization: str | None,
) -> CpuLinearWeight:
    """Raises ValueError where a format or a shape is not supported, naming it."""
    packed = native.pack_matrix(
        [native_part(part, dtype, quantization) for part in parts],
        None if bias is None else bias.detach().to(torch.float32).contiguous(),
        quantization or "",
        executor.isa,
        executor.pool,
    )
    return CpuLinearWeight(packed)
