"""Finds out in which order a library sums: which sizes of a matrix product give a row the same bits.

A product's order of summation depends on its shape, on where a row stands in it and on the number of threads, not on
the numbers multiplied. So a trial tells: sums of terms that cancel in pairs are 0 but for what rounding leaves, and
that is another number for nearly every order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch

REFERENCE_ROWS = 16  # the fewest that every library known computes alike at each place
SIZES = (512, 256, 128, 64, 32, 16, 8)  # rows of a call
BATCHES = (64, 32, 16, 8, 4, 2)  # matrices of a call


class Piece(NamedTuple):
    """What one call computes: `size` rows or matrices from `first` on, the last call perhaps more than there are."""

    first: int
    size: int


@dataclass(frozen=True)
class Product:
    """All that a library can see of a product but the numbers and how many rows and matrices there are; it says in
    which calls to compute those.

    transposed: of a batched product, whether the second matrices lie in memory as [N, K]. A single product is
    torch's `linear`, with the matrix as [N, K].
    """

    in_features: int
    out_features: int
    dtype: torch.dtype
    num_threads: int
    batched: bool = False
    transposed: bool = False
    has_bias: bool = False

    def row_pieces(self, rows: int) -> list[Piece]:
        sizes = [size for size in SIZES if size * 3 <= rows * 4 or size <= REFERENCE_ROWS]  # try none too large to use
        sizes = [size for size in sizes if sums_alike(self, 1, size)]
        return _pieces(rows, sizes if REFERENCE_ROWS in sizes else [*sizes, 1])

    def batch_pieces(self, matrices: int, rows: int) -> list[Piece]:
        """rows: one of the sizes of `row_pieces`."""
        sizes = [size for size in BATCHES if size <= matrices and sums_alike(self, size, rows)]
        return _pieces(matrices, [*sizes, 1], padded=False)


def _pieces(total: int, sizes: list[int], padded: bool = True) -> list[Piece]:
    """The largest size that is full (padded: to three quarters), again and again; the smallest for what remains."""
    pieces, first = [], 0
    while first < total:
        left = total - first
        size = next((size for size in sizes if size <= (left * 4 // 3 if padded else left)), sizes[-1])
        pieces.append(Piece(first, size))
        first += size
    return pieces


@functools.cache
def sums_alike(product: Product, batch: int, rows: int) -> bool:
    """Whether each row of a call of this shape is summed as in the product's reference."""
    return bool((_trial(product, batch, rows) == _reference(product)).all())


@functools.cache
def _reference(product: Product) -> torch.Tensor:
    """[N]: what is left of every row of REFERENCE_ROWS, or of a single one where those rows differ."""
    several = _trial(product, 1, REFERENCE_ROWS)
    return (several if bool((several == several[0]).all()) else _trial(product, 1, 1))[0]


def _trial(product: Product, batch: int, rows: int) -> torch.Tensor:
    """[batch * rows, N]: one row times one matrix, over and over."""
    columns, half = product.out_features, product.in_features // 2
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(product.in_features, generator=generator)
    odd = [torch.zeros(1)] if product.in_features % 2 else []
    row, block = torch.randn(half, generator=generator), torch.randn(64, half, generator=generator)
    row = torch.cat([row, row, *odd])[order].to(product.dtype)
    block = torch.cat([block, -block, *(zero.expand(64, 1) for zero in odd)], dim=1)[:, order].to(product.dtype)
    matrix = block.repeat(-(-columns // 64), 1)[:columns]
    if product.batched:
        matrices = matrix.repeat(batch, 1, 1).transpose(1, 2)
        matrices = matrices if product.transposed else matrices.contiguous()
        return torch.bmm(row.repeat(batch, rows, 1), matrices).flatten(0, 1)
    bias = torch.randn(columns, generator=generator) * 2.0**-22  # small, or it would cover what rounding leaves
    return torch.nn.functional.linear(row.repeat(rows, 1), matrix, bias.to(product.dtype) if product.has_bias else None)
