"""From the logits of a step to one token a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pellucid.core.messages import TokenLogprob
from pellucid.sampling.errors import NO_TOKEN_LEFT, SamplingError
from pellucid.sampling.logprobs import token_logprobs
from pellucid.sampling.rng import uniform
from pellucid.sampling.state import SamplingState
from pellucid.sampling.vocabulary import Draw, NumpyVocabularyOps, VocabularyOps

NOT_FINITE = "the model computed logits that are not finite (NaN or infinity), so that no token can be sampled"


@dataclass(frozen=True)
class SampledToken:
    """Either a token, with its log-probabilities when they were asked for, or an error that ends the request.

    model_failed: with an error: the model's own logits are not finite, and not only nothing could be sampled from them.
    """

    token_id: int = -1
    logprobs: TokenLogprob | None = None
    error: str | None = None
    model_failed: bool = False


class Sampler:
    """Row i of the logits and states[i] give token i, and nothing else does: not the batch, not an earlier step.

    ops: the backend's passes over a row; plain ones where it has none.
    """

    def __init__(self, vocab_size: int, ops: VocabularyOps | None = None) -> None:
        self._vocab_size = vocab_size
        self._ops = ops or NumpyVocabularyOps(vocab_size)

    def sample(self, logits: torch.Tensor, states: Sequence[SamplingState]) -> list[SampledToken]:
        """logits: float32 [len(states), vocab_size], on any device; not written to."""
        if logits.shape != (len(states), self._vocab_size):
            raise ValueError(f"logits of shape {list(logits.shape)}: expected {[len(states), self._vocab_size]}")
        if not states:
            return []
        if logits.device.type != "cpu" and all(_is_plain(state) for state in states):
            return _greedy_on_device(logits)
        raw = to_host(logits)
        adjusted, errors = self._adjust(raw, states)
        token_ids, highest = self._ops.argmax(adjusted)
        chosen: list[int] = token_ids.tolist()
        for i in np.flatnonzero(~np.isfinite(highest)).tolist():
            errors.setdefault(i, _describe(raw[i], highest[i]))
        draws = [_draw(i, state) for i, state in enumerate(states) if not state.is_greedy and i not in errors]
        if draws:
            for draw, token_id in zip(draws, self._ops.draw(adjusted, draws), strict=True):
                chosen[draw.row] = token_id
        logprobs = self._logprobs(raw, chosen, states, errors)
        return [
            _failed(errors[i], raw[i]) if i in errors else SampledToken(chosen[i], logprobs.get(i))
            for i in range(len(states))
        ]

    def _adjust(self, raw: np.ndarray, states: Sequence[SamplingState]) -> tuple[np.ndarray, dict[int, str]]:
        """The logits to sample from: raw itself where no request asks for anything else."""
        errors: dict[int, str] = {}
        rows = [i for i, state in enumerate(states) if state.adjusts]
        if not rows:
            return raw, errors
        adjusted = raw.copy()
        for i in rows:
            try:
                states[i].adjust(adjusted[i])
                if (bitmask := states[i].token_bitmask) is not None:
                    self._ops.apply_bitmask(adjusted[i], bitmask)
            except SamplingError as error:
                errors[i] = str(error)
        return adjusted, errors

    def _logprobs(
        self, raw: np.ndarray, chosen: list[int], states: Sequence[SamplingState], errors: dict[int, str]
    ) -> dict[int, TokenLogprob]:
        rows, num_top, more = [], [], []
        for i, state in enumerate(states):
            if state.params.logprobs is not None and i not in errors:
                if not np.isfinite(raw[i].max()):  # only the adjusted row has been looked at
                    errors[i] = _describe(raw[i], raw[i].max())
                    continue
                rows.append(i)
                num_top.append(state.params.logprobs)
                more.append(state.params.logprob_token_ids)
        entries = token_logprobs(self._ops, raw, rows, [chosen[i] for i in rows], num_top, more)
        return dict(zip(rows, entries, strict=True))


def to_host(logits: torch.Tensor) -> np.ndarray:
    """float32, contiguous, as numpy sees it; no copy where the tensor is that already."""
    return logits.to("cpu", torch.float32).contiguous().numpy()


def _is_plain(state: SamplingState) -> bool:
    return state.is_greedy and not state.adjusts and state.params.logprobs is None


def _greedy_on_device(logits: torch.Tensor) -> list[SampledToken]:
    """Where nothing but the likeliest token is asked for, two numbers a row leave the device instead of all logits."""
    highest, token_ids = logits.max(dim=-1)
    return [
        SampledToken(token_id) if np.isfinite(logit) else SampledToken(error=NOT_FINITE, model_failed=True)
        for token_id, logit in zip(token_ids.tolist(), highest.tolist(), strict=True)
    ]


def _draw(row: int, state: SamplingState) -> Draw:
    params = state.params
    u = uniform(state.seed, state.num_output_tokens)
    return Draw(row, params.temperature, state.top_k, params.top_p, params.min_p, u)


def _failed(error: str, raw: np.ndarray) -> SampledToken:
    return SampledToken(error=error, model_failed=not np.isfinite(raw.max()))


def _describe(raw: np.ndarray, highest: np.float32) -> str:
    """Why a row has no likeliest token."""
    if not np.isfinite(raw.max()):
        return NOT_FINITE
    if highest == -np.inf:
        return NO_TOKEN_LEFT
    return "the logits are not finite (NaN or infinity) once the logits processors and parameters have been applied"
