"""Matrix products whose rows do not notice each other.

A library picks its inner loops by a product's shape, and each sums in its own order. MKL does so by the number of rows
and of threads (with AVX2 the last two of 8 or 32 rows go another way than those above them), oneDNN with tile registers
by whether there are more than 32 rows; on other processors all multiples of 8 rows are alike. No such rule is relied
upon: on a CPU, rows are computed in calls of sizes that `summation` has found to give a row the same bits, there and
with that number of threads. GPU libraries choose by the whole shape, so there every call has the same one.
"""

from __future__ import annotations

import torch

from pellucid.kernels.torch.summation import REFERENCE_ROWS, Piece, Product, sums_alike

GPU_ROWS = 64  # rows of every product on a GPU
GPU_BATCH = 32  # matrices of every batched product on a GPU
ELEMENTS_AT_ONCE = 1 << 24  # of a matrix: a trial of sizes has one of its own
ALIGNMENT = 64  # bytes: where torch's allocations begin, and so what the trials have


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class FixedShapes:
    """Calls of one shape, where nothing is known of what a library does with another."""

    def row_pieces(self, rows: int) -> list[Piece]:
        return [Piece(first, GPU_ROWS) for first in range(0, rows, GPU_ROWS)]

    def batch_pieces(self, matrices: int, rows: int) -> list[Piece]:
        return [Piece(first, GPU_BATCH) for first in range(0, matrices, GPU_BATCH)]


class InvariantMatmul:
    """`linear` and `batched`: as in torch, but a row's bits depend on that row and the matrix alone."""

    def __init__(self, device: torch.device) -> None:
        self._fixed_shapes = FixedShapes() if device.type != "cpu" else None

    def padded_rows(self, rows: int) -> int:
        """How many rows `batched` need not pad, for this many rows of content."""
        return round_up(rows, GPU_ROWS if self._fixed_shapes else REFERENCE_ROWS)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x @ weight.T + bias: [T, in], [out, in], [out] -> [T, out]."""
        columns = max(ELEMENTS_AT_ONCE // weight.shape[1] // ALIGNMENT, 1) * ALIGNMENT
        if self._fixed_shapes or weight.shape[0] <= columns:
            return self._linear(x, weight, bias)
        weights = weight.split(columns)
        biases = [None] * len(weights) if bias is None else bias.split(columns)
        return torch.cat([self._linear(x, *part) for part in zip(weights, biases, strict=True)], dim=1)

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows, (out_features, in_features) = x.shape[0], weight.shape
        product = self._fixed_shapes or Product(
            in_features, out_features, x.dtype, torch.get_num_threads(), has_bias=bias is not None
        )
        results = [
            torch.nn.functional.linear(_aligned(_padded(x[first : first + size], 0, size)), weight, bias)
            for first, size in product.row_pieces(rows)
        ]
        if not results:
            return x.new_empty(0, out_features)
        return (results[0] if len(results) == 1 else torch.cat(results))[:rows]

    def batched(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a @ b: [B, M, K], [B, K, N] -> [B, M, N]. K and N are the caller's to keep fixed."""
        (batch, rows, in_features), out_features = a.shape, b.shape[2]
        transposed = b.transpose(1, 2).is_contiguous()
        if not transposed:
            b = b.contiguous()
        if self._fixed_shapes:
            return self._in_pieces(self._fixed_shapes, a, b)
        product = Product(
            in_features, out_features, a.dtype, torch.get_num_threads(), batched=True, transposed=transposed
        )
        if sums_alike(product, batch, rows):  # attention has few shapes: try the very one
            return torch.bmm(_aligned(a), _aligned(b))
        return self._in_pieces(product, a, b)

    def _in_pieces(self, product: Product | FixedShapes, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        (batch, rows, _), out_features = a.shape, b.shape[2]
        out = a.new_empty(batch, rows, out_features)
        for first_row, num_rows in product.row_pieces(rows):
            a_rows = _padded(a[:, first_row : first_row + num_rows], 1, num_rows)
            for first, size in product.batch_pieces(batch, num_rows):
                a_piece = _aligned(_padded(a_rows[first : first + size], 0, size))
                values = torch.bmm(a_piece, _aligned(_padded(b[first : first + size], 0, size)))
                out[first : first + size, first_row:][:, :num_rows] = values[: batch - first, : rows - first_row]
        return out


def _padded(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """x with zeros appended along a dimension."""
    missing = size - x.shape[dim]
    if not missing:
        return x
    shape = list(x.shape)
    shape[dim] = missing
    return torch.cat([x, x.new_zeros(shape)], dim=dim)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """x where a library's loops find it in a trial too: at the beginning of an allocation, without gaps."""
    dense = x.is_contiguous() or (x.dim() == 3 and x.transpose(1, 2).is_contiguous())
    return x if dense and x.data_ptr() % ALIGNMENT == 0 else x.clone(memory_format=torch.contiguous_format)
