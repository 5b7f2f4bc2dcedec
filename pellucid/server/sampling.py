"""From a dialect's sampling fields to the engine's SamplingParams. Most have the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pellucid.sampling.params import SamplingParams
from pellucid.server.errors import invalid, shorten
from pellucid.server.schemas.common import SamplingFields

_AS_THEY_ARE = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "prompt_logprobs",
)
_AS_TUPLES = ("stop_token_ids", "allowed_token_ids", "bad_words")


def sampling_params(
    defaults: Mapping[str, float], body: SamplingFields, *, max_tokens: int | None, logprobs: int | None, **others: Any
) -> SamplingParams:
    """defaults: for what the body leaves open, where they are not OpenAI's. max_tokens: None for whatever the context
    leaves. others: fields of SamplingParams that the dialect decides.

    Raises ApiError for what only shows here (a logit_bias key that is no token id); the engine's own checks follow.
    """
    values: dict[str, Any] = {**defaults, "max_tokens": max_tokens, "logprobs": logprobs}
    for name in _AS_THEY_ARE:
        if (value := getattr(body, name)) is not None:
            values[name] = value
    for name in _AS_TUPLES:
        if (value := getattr(body, name)) is not None:
            values[name] = tuple(value)
    if body.stop is not None:
        values["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if body.logit_bias is not None:
        values["logit_bias"] = _logit_bias(body.logit_bias)
    return SamplingParams(**values, **others)


def _logit_bias(biases: dict[str, float]) -> dict[int, float]:
    result: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise invalid(f"Invalid key in 'logit_bias': {shorten(key)}. Expected a token id.", param="logit_bias")
        result[int(key)] = float(bias)
    return result
