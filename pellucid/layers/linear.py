"""Linear layers: one matrix for the machine, however many the checkpoint has for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from pellucid.kernels.interface import Kernels
from pellucid.kernels.weights import LinearWeight, WeightSource
from pellucid.layers.slots import WeightSlots, check_shape


class Linear:
    """x -> [T, sum of the parts' out_features], the parts side by side (q, k, v; gate, up; or just one).

    parts: the checkpoint's name of each part -> its out_features. The parts are packed, and let go of, as soon as the
    last of them is there: a checkpoint is never in memory twice.
    """

    def __init__(
        self,
        kernels: Kernels,
        in_features: int,
        parts: Mapping[str, int],
        bias: bool = False,
        quantization: str | None = None,
    ) -> None:
        self._kernels = kernels
        self._in_features = in_features
        self._parts = dict(parts)
        self._has_bias = bias
        self._quantization = quantization
        self._weights: dict[str, WeightSource] = {}
        self._biases: dict[str, torch.Tensor] = {}
        self._packed: LinearWeight | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.linear(x, self.weight)

    @property
    def weight(self) -> LinearWeight:
        if self._packed is None:
            raise RuntimeError(f"the weights of {', '.join(self._parts)} are not loaded")
        return self._packed

    def slots(self, prefix: str) -> WeightSlots:
        slots: WeightSlots = {}
        for name in self._parts:
            slots[f"{prefix}{name}.weight"] = partial(self._take_weight, name)
            if self._has_bias:
                slots[f"{prefix}{name}.bias"] = partial(self._take_bias, name)
        return slots

    def _take_weight(self, name: str, source: WeightSource) -> None:
        check_shape(source, (self._parts[name], self._in_features))
        self._weights[name] = source
        self._pack_when_complete()

    def _take_bias(self, name: str, source: WeightSource) -> None:
        check_shape(source, (self._parts[name],))
        if not isinstance(source, torch.Tensor):
            raise ValueError("is quantised, which a bias can't be")
        self._biases[name] = source
        self._pack_when_complete()

    def _pack_when_complete(self) -> None:
        if len(self._weights) < len(self._parts) or (self._has_bias and len(self._biases) < len(self._parts)):
            return
        bias = torch.cat([self._biases[name].float() for name in self._parts]) if self._has_bias else None
        weights = [self._weights[name] for name in self._parts]
        self._packed = self._kernels.pack_linear(weights, bias, self._quantization)
        self._weights.clear()
        self._biases.clear()
