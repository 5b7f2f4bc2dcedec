"""Presence, frequency and repetition penalties, with the meanings they have in vLLM and transformers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pellucid.sampling.params import SamplingParams


class TokenCounts:
    """How often each token stands in a list that only grows, as arrays: ids int64 [n], counts float32 [n]."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._ids = np.empty(64, np.int64)
        self._counts = np.zeros(64, np.float32)

    @property
    def ids(self) -> np.ndarray:
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> np.ndarray:
        return self._counts[: len(self._slots)]

    def add(self, token_ids: Sequence[int]) -> None:
        slots = self._slots
        for token_id in token_ids:
            slot = slots.setdefault(token_id, len(slots))
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[slot] = token_id
            self._counts[slot] += 1.0


class Penalties:
    """One request's, kept up to date with its tokens at each use, so that a step costs what is new.

    Presence and frequency look at the output alone; repetition looks at prompt and output.
    """

    def __init__(self, params: SamplingParams, num_prompt_tokens: int) -> None:
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._repetition = np.float32(params.repetition_penalty)
        self._output = TokenCounts() if self._presence or self._frequency else None
        self._all = TokenCounts() if self._repetition != 1.0 else None
        self._num_prompt_tokens = num_prompt_tokens
        self._num_seen = 0

    @property
    def active(self) -> bool:
        return self._output is not None or self._all is not None

    def apply(self, row: np.ndarray, token_ids: list[int]) -> None:
        """Change the logits of one row, [vocab_size], in place; token_ids: prompt and output so far."""
        self._catch_up(token_ids)
        if self._all is not None:
            seen = self._all.ids
            logits = row[seen]
            row[seen] = np.where(logits > 0, logits / self._repetition, logits * self._repetition)
        if self._output is not None:
            row[self._output.ids] -= self._frequency * self._output.counts
            row[self._output.ids] -= self._presence

    def _catch_up(self, token_ids: list[int]) -> None:
        if self._all is not None:
            self._all.add(token_ids[self._num_seen :])
        if self._output is not None:
            self._output.add(token_ids[max(self._num_seen, self._num_prompt_tokens) :])
        self._num_seen = len(token_ids)
