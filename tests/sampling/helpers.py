"""States of requests for the sampler's tests."""

from __future__ import annotations

import numpy as np
import torch

from pellucid.sampling.params import SamplingParams
from pellucid.sampling.state import SamplingState

V = 200
EOS = 3


def state(prompt: list[int] | None = None, output: list[int] | None = None, processors=(), **params) -> SamplingState:
    params.setdefault("seed", 0)
    params.setdefault("temperature", 0.0)
    prompt = prompt or [1, 2]
    return SamplingState(SamplingParams(**params), [*prompt, *(output or [])], len(prompt), (EOS,), processors)


def random_logits(num_rows: int = 1, vocab_size: int = V, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((num_rows, vocab_size)).astype(np.float32) * 3)


def adjusted(request: SamplingState, logits: torch.Tensor) -> np.ndarray:
    row = logits[0].numpy().copy()
    if request.adjusts:
        request.adjust(row)
    return row
