"""Matrix products whose rows do not notice each other.

A BLAS picks its inner loops by the number of rows (one row: a matrix-vector routine; a thread's share under four rows:
another kernel), and each sums in its own order. Given only multiples of ROW_TILE rows, the CPU libraries torch ships
use one kernel for every row, whatever the number of rows or threads (measured with 1 to 16 threads;
tests/kernels/test_torch_matmul.py repeats it). GPU libraries choose by the whole shape, so there every call has the
same one.
"""

from __future__ import annotations

import torch

ROW_TILE = 8
GPU_ROWS = 64  # rows of every product on a GPU
GPU_BATCH = 32  # matrices of every batched product on a GPU


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class InvariantMatmul:
    """`linear` and `batched`: as in torch, but a row's bits depend on that row and the matrix alone."""

    def __init__(self, device: torch.device) -> None:
        self._fixed_shapes = device.type != "cpu"

    def padded_rows(self, rows: int) -> int:
        """How many rows `batched` wants for this many rows of content."""
        return round_up(rows, GPU_ROWS if self._fixed_shapes else ROW_TILE)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x @ weight.T + bias: [T, in], [out, in], [out] -> [T, out]."""
        rows = x.shape[0]
        padded = _pad_rows(x, self.padded_rows(rows))
        if not self._fixed_shapes:
            return torch.nn.functional.linear(padded, weight, bias)[:rows]
        tiles = [
            torch.nn.functional.linear(padded[row : row + GPU_ROWS], weight, bias) for row in range(0, rows, GPU_ROWS)
        ]
        return torch.cat(tiles)[:rows] if tiles else x.new_empty(0, weight.shape[0])

    def batched(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a @ b: [B, M, K], [B, K, N] -> [B, M, N]; M must be `padded_rows` of something. K and N are the caller's
        to keep fixed."""
        if not self._fixed_shapes:
            if a.shape[0] == 1:  # a single product may be cut along K by three threads and more, several are not
                return torch.bmm(a.repeat(2, 1, 1), b.repeat(2, 1, 1))[:1]
            return torch.bmm(a, b)
        batch, rows = a.shape[:2]
        out = a.new_empty(batch, rows, b.shape[2])
        for first in range(0, batch, GPU_BATCH):
            matrices = slice(first, first + GPU_BATCH)
            b_tile = _pad_rows(b[matrices], GPU_BATCH)
            for row in range(0, rows, GPU_ROWS):
                a_tile = _pad_rows(a[matrices, row : row + GPU_ROWS], GPU_BATCH)
                out[matrices, row : row + GPU_ROWS] = torch.bmm(a_tile, b_tile)[: batch - first]
        return out


def _pad_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    """x with zeros appended along its first dimension."""
    missing = rows - x.shape[0]
    return torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing else x
