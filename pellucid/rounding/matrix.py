"""Rounding a matrix to 4 bits so that its products change little, given which inputs it is multiplied with.

Column after column is rounded to the grid, and what each one's rounding does to the products is made up for by the
columns that are still to come (GPTQ, Frantar et al. 2022), those first whose inputs are largest.
"""

from __future__ import annotations

import numpy as np
import torch

from pellucid.kernels.int4 import LEVELS, Int4Rows
from pellucid.rounding.grid import SMALLEST, Grid, fit_grid

_DAMPING = 0.01  # of the mean squared input, added to each one's: so much a column may be off without being noticed
_TRUST = 0.02  # the same for the weights themselves: they are the better known the less text there is
_BLOCK = 64  # columns whose errors are passed on together


def round_matrix(weights: torch.Tensor, moment: torch.Tensor) -> Int4Rows:
    """weights: float32 [rows, columns], columns a multiple of 32. moment: float32 [columns, columns], the mean of x x^T
    over inputs x. Deterministic; works in memory of some four times the two."""
    damped = moment.clone()
    damped.diagonal().add_(_DAMPING * moment.diagonal().mean() + 1e-12)
    grid = fit_grid(weights, damped.diagonal())
    order = torch.argsort(damped.diagonal(), descending=True, stable=True)
    follows = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped[order][:, order])), upper=True)
    codes = torch.empty_like(weights)
    codes[:, order] = _codes(weights, grid, order, follows).T
    return grid.int4_rows(codes)


def towards(weights: torch.Tensor, moment: torch.Tensor, difference: torch.Tensor) -> torch.Tensor:
    """The weights that come nearest, on inputs x, to what `weights` give on inputs x': least squares.

    moment: the mean of x x^T. difference: the mean of x (x' - x)^T, for x and x' in pairs.
    """
    damped = moment.clone()
    damped.diagonal().add_(_TRUST * moment.diagonal().mean() + 1e-12)
    return weights + torch.cholesky_solve(difference @ weights.T, torch.linalg.cholesky(damped)).T


def _codes(weights: torch.Tensor, grid: Grid, order: torch.Tensor, follows: torch.Tensor) -> torch.Tensor:
    """[columns, rows], in the given order. follows: [columns, columns] upper triangular; row j over its diagonal is how
    much of column j's error each later column takes over."""
    scale, minimum = (values[order].numpy() for values in grid.by_column)
    passed_on = follows.numpy()  # numpy: steps so small are quicker without torch's threads
    left = weights.T[order].contiguous().numpy()  # what each column has still to stand for
    codes = np.empty_like(left)
    columns = len(left)
    for first in range(0, columns, _BLOCK):
        last = min(first + _BLOCK, columns)
        errors = np.empty_like(left[first:last])
        for j in range(first, last):
            step = np.maximum(scale[j], SMALLEST)
            codes[j] = np.clip(np.rint((left[j] + minimum[j]) / step), 0, LEVELS)
            errors[j - first] = (left[j] - (codes[j] * scale[j] - minimum[j])) / passed_on[j, j]
            left[j + 1 : last] -= np.outer(passed_on[j, j + 1 : last], errors[j - first])
        left[last:] -= passed_on[first:last, last:].T @ errors
    return torch.from_numpy(codes)
