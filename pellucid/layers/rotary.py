"""Rotary position embedding (Su et al. 2021): the tables the kernels rotate with, and the ways to stretch them."""

from __future__ import annotations

import math

import torch

from pellucid.models.config import RopeScaling


def cos_sin_table(
    rotary_dim: int, theta: float, num_positions: int, scaling: RopeScaling | None, device: torch.device
) -> torch.Tensor:
    """float32 [num_positions, rotary_dim]: cosines, then sines, of position * frequency.

    In float32 throughout, as the models were trained: at position 100,000 the angle's rounding is part of the model.
    Raises ValueError for a kind of scaling that is not known.
    """
    frequencies = _frequencies(rotary_dim, theta, scaling)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    table = torch.cat([angles.cos(), angles.sin()], dim=-1)
    return (table * _magnitude(scaling)).to(device)


def _frequencies(rotary_dim: int, theta: float, scaling: RopeScaling | None) -> torch.Tensor:
    """[rotary_dim / 2], radians per position, falling."""
    plain = 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(plain, scaling)
    if scaling.kind == "yarn":
        return _yarn(plain, rotary_dim, theta, scaling)
    if scaling.kind == "factors":
        if len(scaling.freq_factors) != len(plain):
            raise ValueError(f"{len(scaling.freq_factors)} frequency factors for {len(plain)} rotary frequencies")
        return plain / torch.tensor(scaling.freq_factors, dtype=torch.float32)
    raise ValueError(f"rope scaling {scaling.kind!r} is not supported; there are linear, llama3, yarn and factors")


def _magnitude(scaling: RopeScaling | None) -> float:
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1.0 else 1.0


def _llama3(plain: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1: waves as long as the original context are slowed by `factor`, short ones stay; a ramp between."""
    turns = scaling.original_max_position_embeddings * plain / (2.0 * math.pi)  # in the original context
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return _blend(plain / scaling.factor, plain, kept.clamp(0.0, 1.0))


def _yarn(plain: torch.Tensor, rotary_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """YaRN (Peng et al. 2023): the same idea, with the ramp over the index of the frequency."""

    def index_of(turns: float) -> float:
        """The (fractional) index of the frequency that turns this often in the original context."""
        longest_wave = scaling.original_max_position_embeddings / (turns * 2.0 * math.pi)
        return rotary_dim * math.log(longest_wave) / (2.0 * math.log(theta))

    first, last = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    ramp = (torch.arange(len(plain), dtype=torch.float32) - first) / max(last - first, 0.001)
    return _blend(plain / scaling.factor, plain, 1.0 - ramp.clamp(0.0, 1.0))


def _blend(stretched: torch.Tensor, plain: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return stretched * (1.0 - kept) + plain * kept
