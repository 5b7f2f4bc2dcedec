"""The gated feed-forward layer."""

from __future__ import annotations

import torch

from pellucid.kernels.interface import Kernels
from pellucid.layers.linear import Linear
from pellucid.layers.slots import WeightSlots
from pellucid.models.config import ModelConfig


class GatedMLP:
    """down(act(gate(x)) * up(x))."""

    def __init__(self, kernels: Kernels, config: ModelConfig, quantization: str | None) -> None:
        self._kernels = kernels
        self._activation = config.hidden_act
        gate_up = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
        down = {"down_proj": config.hidden_size}
        self._gate_up = Linear(kernels, config.hidden_size, gate_up, config.mlp_bias, quantization)
        self._down = Linear(kernels, config.intermediate_size, down, config.mlp_bias, quantization)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._down(self._kernels.gated_activation(self._gate_up(x), self._activation))

    def slots(self, prefix: str) -> WeightSlots:
        return self._gate_up.slots(prefix) | self._down.slots(prefix)
