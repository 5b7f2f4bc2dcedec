"""Weights as a loader hands them over, and as a backend keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pellucid.kernels.int4 import INT4, Int4Rows


@dataclass(frozen=True)
class QuantizedTensor:
    """A matrix in one of GGUF's block formats, or in that of pellucid.kernels.int4, still packed.

    data: uint8 [rows, bytes_per_row], usually a view of the memory-mapped file. shape: (rows, columns).
    ggml_type: the format's name as the gguf package spells it ("Q4_1", "Q6_K", ...), or "INT4".
    """

    data: np.ndarray
    ggml_type: str
    shape: tuple[int, int]

    def dequantize(self) -> torch.Tensor:
        """float32 [rows, columns]."""
        if self.ggml_type == INT4:
            return torch.from_numpy(Int4Rows.from_bytes(self.data, self.shape[1]).values())
        import gguf

        values = gguf.quants.dequantize(self.data, gguf.GGMLQuantizationType[self.ggml_type])
        return torch.from_numpy(np.ascontiguousarray(values)).view(self.shape)


WeightSource = torch.Tensor | QuantizedTensor


class LinearWeight:
    """A packed [out_features, in_features] matrix (+ optional bias); what is inside is its backend's affair.

    Made by Kernels.pack_linear only. A tied embedding is the same object used by `embedding` and `linear`.
    """

    in_features: int
    out_features: int
    num_bytes: int  # what it occupies, for the memory report


def total_rows(parts: Sequence[WeightSource]) -> int:
    return sum(part.shape[0] for part in parts)
