"""RMS norm."""

from __future__ import annotations

import torch

from pellucid.kernels.interface import Kernels
from pellucid.kernels.weights import WeightSource
from pellucid.layers.slots import WeightSlots, check_shape


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * w.

    plus_one: the checkpoint stores w - 1 (Gemma). scale: a constant multiplied into w.
    """

    def __init__(self, kernels: Kernels, size: int, eps: float, plus_one: bool = False, scale: float = 1.0) -> None:
        self._kernels = kernels
        self._size = size
        self.eps = eps
        self._plus_one = plus_one
        self._scale = scale
        self._weight: torch.Tensor | None = None

    @property
    def weight(self) -> torch.Tensor:
        """[size] float32, as the kernels want it."""
        if self._weight is None:
            raise RuntimeError("the weight of a norm is not loaded")
        return self._weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of x + residual, x + residual)."""
        return self._kernels.add_rms_norm(x, residual, self.weight, self.eps)

    def slots(self, prefix: str) -> WeightSlots:
        return {f"{prefix}weight": self._take}

    def _take(self, source: WeightSource) -> None:
        check_shape(source, (self._size,))
        if not isinstance(source, torch.Tensor):
            raise ValueError("is quantised, which the weight of a norm can't be")
        # a copy: a view would keep the mapped file open
        weight = source.to(self._kernels.device, torch.float32, copy=True)
        self._weight = (weight + float(self._plus_one)) * self._scale
