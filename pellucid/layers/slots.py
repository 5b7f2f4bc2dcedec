"""Where a checkpoint's tensors go: every layer lists the keys it takes, with a function that takes each."""

from __future__ import annotations

from collections.abc import Callable

from pellucid.kernels.weights import WeightSource

WeightSlots = dict[str, Callable[[WeightSource], None]]  # HF's key -> takes the tensor; ValueError when it does not fit


def check_shape(source: WeightSource, expected: tuple[int, ...]) -> None:
    if tuple(source.shape) != expected:
        raise ValueError(f"has the shape {list(source.shape)}, the model's configuration says {list(expected)}")
