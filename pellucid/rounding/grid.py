"""Scales and minima of 4-bit groups: the levels that a group's weights are then rounded to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pellucid.kernels.int4 import GROUP, LEVELS, SUPER, Int4Rows

_SHRINKS = (1.0, 0.95, 0.9, 0.84, 0.78)  # of the range of a group, to begin with
_FITS = 4
SMALLEST = 1e-20


@dataclass(frozen=True)
class Grid:
    """Of a matrix [rows, columns]; all float32. units: [rows, groups, 2], of scale and minimum, equal within a
    super-block. counts: [rows, groups, 2], whole numbers from 0 to 255. A level is scale * code - minimum."""

    units: torch.Tensor
    counts: torch.Tensor

    @property
    def by_column(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and minimum of every element: [columns, rows] each."""
        values = (self.units * self.counts).repeat_interleave(GROUP, dim=1)
        return values[..., 0].T.contiguous(), values[..., 1].T.contiguous()

    def int4_rows(self, codes: torch.Tensor) -> Int4Rows:
        """codes: [rows, columns]."""
        units = self.units[:, ::SUPER].to(torch.float16)
        return Int4Rows(units.numpy(), self.counts.to(torch.uint8).numpy(), codes.to(torch.uint8).contiguous().numpy())


def fit_grid(weights: torch.Tensor, importance: torch.Tensor) -> Grid:
    """The grid of least squared error. weights: float32 [rows, columns]. importance: [columns], of each one's error.

    From several clipped ranges, codes and the line through them (least squares) are fitted in turn, and the best line
    is kept. The minimum, which is subtracted, is never negative.
    """
    rows, columns = weights.shape
    w = weights.view(rows, columns // GROUP, GROUP)
    d = importance.view(1, -1, GROUP).expand_as(w)
    high, low = w.amax(-1, keepdim=True), w.amin(-1, keepdim=True).clamp_max(0)
    middle, extent = (high + low) / 2, high - low
    sum_d, sum_w = d.sum(-1, keepdim=True), (d * w).sum(-1, keepdim=True)
    least = torch.full_like(high, math.inf)
    best_scale, best_minimum = torch.zeros_like(high), torch.zeros_like(high)
    for shrink in _SHRINKS:
        scale, minimum = shrink * extent / LEVELS, shrink * extent / 2 - middle
        minimum = minimum.clamp_min(0)
        for _ in range(_FITS):
            codes = nearest_codes(w, scale, minimum)
            error = (d * (codes * scale - minimum - w).square()).sum(-1, keepdim=True)
            better = error < least
            least = torch.where(better, error, least)
            best_scale, best_minimum = (
                torch.where(better, scale, best_scale),
                torch.where(better, minimum, best_minimum),
            )
            dc = d * codes
            sum_c, sum_cc, sum_cw = (x.sum(-1, keepdim=True) for x in (dc, dc * codes, dc * w))
            determinant = sum_d * sum_cc - sum_c.square()
            differ = determinant > 1e-9 * sum_d * sum_cc  # else all codes are equal
            slope = torch.where(differ, (sum_d * sum_cw - sum_c * sum_w) / determinant, scale)
            minimum = (slope * sum_c - sum_w) / sum_d
            through_zero = (minimum < 0) & (sum_cc > 0)
            scale = torch.where(through_zero, sum_cw / sum_cc, slope).clamp_min(0)
            minimum = minimum.clamp_min(0)
    fitted = torch.cat([best_scale, best_minimum], -1)
    units = _units(fitted)
    return Grid(units, in_units(fitted, units))


def nearest_codes(weights: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    return ((weights + minimum) / scale.clamp_min(SMALLEST)).round_().clamp_(0, LEVELS)


def in_units(values: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    return (values / units.clamp_min(SMALLEST)).round_().clamp_(0, 255)


def _units(fitted: torch.Tensor) -> torch.Tensor:
    """[rows, groups, 2] -> the same shape: float16 units of which the largest of a super-block is 255."""
    rows, groups, _ = fitted.shape
    padded = torch.nn.functional.pad(fitted, (0, 0, 0, -groups % SUPER)).view(rows, -1, SUPER, 2)
    units = (padded.amax(2) / 255).half().float()
    return units.repeat_interleave(SUPER, dim=1)[:, :groups].contiguous()
