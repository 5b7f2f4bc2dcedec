"""Rotary positions in config.json: rope_theta and rope_scaling (transformers 4) or rope_parameters (5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pellucid.loader.errors import UnsupportedModelError
from pellucid.loader.fields import Fields
from pellucid.loader.limits import MAX_POSITIONS, MAX_THETA
from pellucid.models.config import RopeScaling

KINDS = ("default", "linear", "llama3", "yarn")
_KNOWN = {
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "partial_rotary_factor",
    "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "truncate",
    "mscale", "mscale_all_dim",
}  # fmt: skip


@dataclass(frozen=True)
class Rope:
    theta: float
    scaling: RopeScaling | None
    theta_local: float | None  # of the sliding layers, where they have their own


def read_rope(fields: Fields, *, has_local_base: bool) -> Rope:
    """Raises UnsupportedModelError naming what is not computed, ModelConfigError for numbers that make no sense."""
    parameters = fields.values.get("rope_parameters")
    spelling = "rope_parameters" if parameters else "rope_scaling"
    parameters = parameters or fields.values.get("rope_scaling") or {}
    nested = Fields(parameters, f"{fields.origin}: {spelling}")
    theta = fields.number("rope_theta", low=1.0, high=MAX_THETA)
    theta_local = fields.number("rope_local_base_freq", None, low=1.0, high=MAX_THETA) if has_local_base else None
    if not nested.values.keys() & {"full_attention", "sliding_attention"}:
        return Rope(nested.number("rope_theta", theta, low=1.0, high=MAX_THETA), _scaling(fields, nested), theta_local)
    full = Fields(parameters.get("full_attention") or {}, f"{nested.origin}.full_attention")
    sliding = Fields(parameters.get("sliding_attention") or {}, f"{nested.origin}.sliding_attention")
    theta = full.number("rope_theta", theta, low=1.0, high=MAX_THETA)
    scaling = _scaling(fields, full)
    local = sliding.number("rope_theta", theta_local or theta, low=1.0, high=MAX_THETA)
    if _scaling(fields, sliding) is not None:
        raise UnsupportedModelError(f"{sliding.origin}: a scaled rope in sliding layers is not supported")
    return Rope(theta, scaling, local)


def _scaling(fields: Fields, parameters: Fields) -> RopeScaling | None:
    kind = parameters.text("rope_type", None) or parameters.text("type", None) or "default"
    if kind not in KINDS:
        raise UnsupportedModelError(f"{parameters.origin}: the rope kind {kind!r}; supported are {', '.join(KINDS)}")
    if parameters.number("partial_rotary_factor", 1.0, low=0.0, high=1.0) != 1.0:
        raise UnsupportedModelError(f"{parameters.origin}: a partial_rotary_factor other than 1 is not supported")
    unknown = sorted(name for name, value in parameters.values.items() if name not in _KNOWN and value is not None)
    if unknown:
        raise UnsupportedModelError(f"{parameters.origin}: not supported: {', '.join(unknown)}")
    if kind == "default":
        return None
    factor = parameters.number("factor", low=1.0, high=1e6)
    if kind == "linear":
        return RopeScaling("linear", factor)
    original = parameters.integer("original_max_position_embeddings", None, high=MAX_POSITIONS)
    if original is None:
        original = fields.integer("original_max_position_embeddings", None, high=MAX_POSITIONS)
    if original is None:
        original = fields.integer("max_position_embeddings", high=MAX_POSITIONS)
    if kind == "llama3":
        low = parameters.number("low_freq_factor", low=1e-3, high=1e6)
        high = parameters.number("high_freq_factor", low=1e-3, high=1e6)
        if high <= low:
            raise parameters.error("high_freq_factor", f"more than low_freq_factor={low:g}")
        return RopeScaling("llama3", factor, low, high, original)
    return RopeScaling(
        "yarn",
        factor,
        original_max_position_embeddings=original,
        beta_fast=parameters.number("beta_fast", 32.0, low=1e-3, high=1e6),
        beta_slow=parameters.number("beta_slow", 1.0, low=1e-3, high=1e6),
        attention_factor=_attention_factor(parameters, factor),
        truncate=parameters.boolean("truncate", True),
    )


def _attention_factor(parameters: Fields, factor: float) -> float | None:
    """What YaRN multiplies cosines and sines by; None where it is the paper's 0.1 * ln(factor) + 1."""
    stated = parameters.number("attention_factor", None, low=1e-3, high=1e6)
    mscale = parameters.number("mscale", 0.0, low=0.0, high=1e3)
    mscale_all_dim = parameters.number("mscale_all_dim", 0.0, low=0.0, high=1e3)
    if stated is not None or not (mscale and mscale_all_dim):
        return stated
    return (0.1 * mscale * math.log(factor) + 1.0) / (0.1 * mscale_all_dim * math.log(factor) + 1.0)
