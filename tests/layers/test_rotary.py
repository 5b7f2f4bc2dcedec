"""The rotary tables against transformers' own, for every kind of scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pellucid.layers.rotary import cos_sin_table
from pellucid.models.config import RopeScaling

CASES: list[tuple[dict[str, Any], RopeScaling | None]] = [
    ({"rope_type": "default"}, None),
    ({"rope_type": "linear", "factor": 8.0}, RopeScaling("linear", 8.0)),
    (
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        RopeScaling("llama3", 32.0, 1.0, 4.0, 8192),
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        RopeScaling("yarn", 4.0, original_max_position_embeddings=32768),
    ),
    (
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 20.0,
            "beta_slow": 2.0,
            "attention_factor": 1.3,
            "truncate": False,
        },
        RopeScaling(
            "yarn",
            16.0,
            original_max_position_embeddings=4096,
            beta_fast=20.0,
            beta_slow=2.0,
            attention_factor=1.3,
            truncate=False,
        ),
    ),
]


@pytest.mark.parametrize(("theirs", "ours"), CASES)
@pytest.mark.parametrize(("head_dim", "theta"), [(64, 10000.0), (128, 500000.0)])
def test_tables_are_transformers(theirs: dict[str, Any], ours: RopeScaling | None, head_dim: int, theta: float) -> None:
    positions = 40_000
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": theta, **theirs},
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(positions)[None])
    expected = torch.cat([cos[0, :, : head_dim // 2], sin[0, :, : head_dim // 2]], dim=-1)
    table = cos_sin_table(head_dim, theta, positions, ours, torch.device("cpu"))
    assert table.dtype == torch.float32
    # where a frequency differs in its last bit, the angle at position 40,000 differs by some thousandths
    torch.testing.assert_close(table[:2000], expected[:2000], rtol=0, atol=5e-4)
    torch.testing.assert_close(table, expected, rtol=0, atol=1e-2)


def test_stored_factors_divide_the_frequencies() -> None:
    """How GGUF files keep llama3 scaling: the factors that llama3's formula gives, give its table."""
    llama3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    one = torch.device("cpu")
    plain, stretched = (cos_sin_table(64, 500000.0, 2, scaling, one)[1, 32:].asin() for scaling in (None, llama3))
    factors = RopeScaling("factors", freq_factors=tuple((plain / stretched).tolist()))
    torch.testing.assert_close(
        cos_sin_table(64, 500000.0, 500, factors, one), cos_sin_table(64, 500000.0, 500, llama3, one), atol=1e-3, rtol=0
    )


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="'longrope' is not supported"):
        cos_sin_table(64, 10000.0, 4, RopeScaling("longrope"), torch.device("cpu"))
    with pytest.raises(ValueError, match="2 frequency factors for 32"):
        cos_sin_table(64, 10000.0, 4, RopeScaling("factors", freq_factors=(1.0, 2.0)), torch.device("cpu"))
