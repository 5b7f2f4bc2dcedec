"""Rounding one matrix: what its products lose, and what comes back as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pellucid.kernels.int4 import Int4Rows, columns_of, num_supers
from pellucid.rounding.grid import fit_grid, nearest_codes
from pellucid.rounding.matrix import round_matrix, towards

ROWS, COLUMNS = 48, 320


def inputs(num: int, seed: int) -> torch.Tensor:
    """[num, COLUMNS], correlated and some much larger than others, as activations are."""
    generator = torch.Generator().manual_seed(7)
    mix = torch.randn(COLUMNS, COLUMNS, generator=generator) * COLUMNS**-0.5
    sizes = torch.exp(torch.randn(COLUMNS, generator=generator))
    few = torch.randn(COLUMNS // 8, COLUMNS, generator=generator)
    own = torch.Generator().manual_seed(seed)
    shared = torch.randn(num, COLUMNS // 8, generator=own) @ few * 0.5
    return (torch.randn(num, COLUMNS, generator=own) @ mix + shared) * sizes


@pytest.fixture(scope="module")
def weights() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)) * 0.05


def rounded_alone(weights: torch.Tensor) -> torch.Tensor:
    grid = fit_grid(weights, torch.ones(weights.shape[1]))
    scale, minimum = grid.by_column
    return torch.from_numpy(grid.int4_rows(nearest_codes(weights.T, scale, minimum).T).values())


def lost(weights: torch.Tensor, rounded: torch.Tensor, x: torch.Tensor) -> float:
    return ((x @ (rounded - weights).T).square().mean() / (x @ weights.T).square().mean()).item()


def test_products_lose_far_less_than_by_rounding_each_weight_alone(weights: torch.Tensor) -> None:
    x, others = inputs(2000, 2), inputs(500, 3)
    rounded = torch.from_numpy(round_matrix(weights, x.T @ x / len(x)).values())
    assert lost(weights, rounded, others) < 0.4 * lost(weights, rounded_alone(weights), others)


def test_it_is_the_same_to_the_bit_every_time(weights: torch.Tensor) -> None:
    x = inputs(1000, 2)
    first, second = (round_matrix(weights, x.T @ x / len(x)).to_bytes() for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_weights_on_a_4_bit_grid_come_back_as_they_were() -> None:
    rng = np.random.default_rng(0)
    groups = COLUMNS // 32
    codes = rng.integers(0, 16, (ROWS, groups, 32), dtype=np.uint8)
    codes[..., :2] = 0, 15  # the whole range is used
    scales = rng.integers(100, 256, (ROWS, groups, 2), dtype=np.uint8)
    scales[:, ::8] = 255
    units = np.full((ROWS, num_supers(groups), 2), (1e-4, 1e-3), np.float16)
    before = torch.from_numpy(Int4Rows(units, scales, codes.reshape(ROWS, COLUMNS)).values())
    x = inputs(1000, 2)
    after = torch.from_numpy(round_matrix(before, x.T @ x / len(x)).values())
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-6)


def test_the_target_makes_up_for_inputs_that_are_off(weights: torch.Tensor) -> None:
    exact = inputs(2000, 2)
    x = exact + 0.3 * exact.roll(1, dims=1)
    target = towards(weights, x.T @ x / len(x), x.T @ (exact - x) / len(x))
    wanted = exact @ weights.T
    assert (x @ target.T - wanted).square().mean() < 0.5 * (x @ weights.T - wanted).square().mean()


def test_inputs_that_never_are_anything_but_zero_do_no_harm(weights: torch.Tensor) -> None:
    x = inputs(100, 2)
    x[:, 40:80] = 0
    rounded = torch.from_numpy(round_matrix(weights, x.T @ x / len(x)).values())
    assert torch.isfinite(rounded).all()
    nothing = torch.from_numpy(round_matrix(weights, torch.zeros(COLUMNS, COLUMNS)).values())
    assert (nothing - weights).abs().max() < 0.1 * weights.abs().max()


@pytest.mark.parametrize("columns", [32, 256, 288, 576, 1536, 2304])
def test_the_length_of_a_row_tells_its_columns(columns: int) -> None:
    groups = columns // 32
    rows = Int4Rows(
        np.ones((3, num_supers(groups), 2), np.float16),
        np.ones((3, groups, 2), np.uint8),
        np.ones((3, columns), np.uint8),
    )
    assert columns_of(rows.to_bytes().shape[1]) == columns
    for wrong in (1, 4, 5, 23, 41):
        with pytest.raises(ValueError, match=f"{wrong} bytes"):
            columns_of(wrong)
