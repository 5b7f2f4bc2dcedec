"""The passes over a row of logits that sampling needs, and their plain implementation.

What a row gives depends on that row alone, to the bit: every reduction runs over one contiguous row, on one thread,
in an order fixed by the vocabulary's size. A native backend may bring its own VocabularyOps; this one is their oracle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pellucid.sampling import masks

# Weights are summed in chunks of this many tokens, and the sums of the chunks are added up in order.
CHUNK = 256

# Likely tokens are looked for among those at least so many times as likely as the likeliest, with the first of these
# thresholds that finds enough; so the vocabulary is sorted only where a request asks for most of it.
_THRESHOLDS = (np.float32(1e-2), np.float32(1e-4), np.float32(1e-7), np.float32(0.0))


class Draw(NamedTuple):
    """One token to draw from row `row`: temperature > 0; top_k 0 for all tokens; u, the random number, in [0, 1)."""

    row: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    u: float


class VocabularyOps(ABC):
    """logits: float32 [L, vocab_size], C-contiguous, never written to. The rows that are used hold no NaN and no +inf,
    and at least one finite number. Where two tokens are equally likely the one with the lower id comes first.
    """

    @abstractmethod
    def argmax(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The likeliest token of every row, and its logit: int64 [L], float32 [L]. A NaN counts as the largest."""

    @abstractmethod
    def log_normalizers(self, logits: np.ndarray, rows: Sequence[int]) -> list[float]:
        """log(sum(exp(row))) of each of these rows."""

    @abstractmethod
    def most_likely(self, logits: np.ndarray, rows: Sequence[int], counts: Sequence[int]) -> list[np.ndarray]:
        """For each of these rows the ids of its `count` likeliest tokens, likeliest first."""

    @abstractmethod
    def ranks(self, logits: np.ndarray, rows: Sequence[int], token_ids: Sequence[int]) -> list[int]:
        """How far down its row each token stands; 1 is the likeliest."""

    @abstractmethod
    def draw(self, logits: np.ndarray, draws: Sequence[Draw]) -> list[int]:
        """A token from each draw's distribution: softmax(row / temperature); of it what is at least min_p times as
        likely as the likeliest; of that the top_k likeliest; of that the fewest, likeliest first, that make up top_p.
        """

    def apply_bitmask(self, row: np.ndarray, bitmask: np.ndarray) -> None:
        """As masks.apply_bitmask: forbidden tokens of one row, a copy of its logits, become -inf, in place."""
        masks.apply_bitmask(row, bitmask)


class NumpyVocabularyOps(VocabularyOps):
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        # The weights of one row, in whole chunks; what is beyond the vocabulary stays 0.
        self._padded = np.zeros(-(-vocab_size // CHUNK) * CHUNK, np.float32)
        self._weights = self._padded[:vocab_size]
        self._chunks = self._padded.reshape(-1, CHUNK)

    def argmax(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        token_ids = logits.argmax(axis=-1)
        return token_ids, logits[np.arange(len(logits)), token_ids]

    def log_normalizers(self, logits: np.ndarray, rows: Sequence[int]) -> list[float]:
        return [self._log_normalizer(logits[row]) for row in rows]

    def most_likely(self, logits: np.ndarray, rows: Sequence[int], counts: Sequence[int]) -> list[np.ndarray]:
        return [self._most_likely(logits[row], count) for row, count in zip(rows, counts, strict=True)]

    def ranks(self, logits: np.ndarray, rows: Sequence[int], token_ids: Sequence[int]) -> list[int]:
        return [self._rank(logits[row], token_id) for row, token_id in zip(rows, token_ids, strict=True)]

    def draw(self, logits: np.ndarray, draws: Sequence[Draw]) -> list[int]:
        return [self._draw(logits[draw.row], draw) for draw in draws]

    # one row ---------------------------------------------------------------------------------------------------------

    def _log_normalizer(self, row: np.ndarray) -> float:
        highest = self._set_weights(row, 1.0)
        return float(highest) + float(np.log(self._cumulative_chunks()[-1]))

    def _most_likely(self, row: np.ndarray, count: int) -> np.ndarray:
        count = min(count, self._vocab_size)
        if count == 0:
            return np.empty(0, np.int64)
        if count == 1:
            return np.array([row.argmax()])
        # every token above the count-th logit, and as many of its equals as there is room for
        kth = np.partition(row, self._vocab_size - count)[self._vocab_size - count]
        return _in_order(row, np.flatnonzero(row >= kth))[:count]

    def _rank(self, row: np.ndarray, token_id: int) -> int:
        logit = row[token_id]
        return 1 + int(np.count_nonzero(row > logit)) + int(np.count_nonzero(row[:token_id] == logit))

    def _draw(self, row: np.ndarray, draw: Draw) -> int:
        self._set_weights(row, draw.temperature)
        if draw.min_p > 0.0:
            self._weights[self._weights < np.float32(draw.min_p)] = 0.0
        cumulative = self._cumulative_chunks()
        if draw.top_p < 1.0 or 0 < draw.top_k < self._vocab_size:
            token_ids, cumulative = self._truncated(row, draw, cumulative[-1])
            return int(token_ids[_first_above(cumulative, draw.u * cumulative[-1])])
        # The chunk that the number falls into, then the token in it.
        target = draw.u * cumulative[-1]
        chunk = _first_above(cumulative, target)
        before = cumulative[chunk - 1] if chunk else 0.0
        inside = np.cumsum(self._chunks[chunk], dtype=np.float64)
        return chunk * CHUNK + _first_above(inside, target - before)

    def _set_weights(self, row: np.ndarray, temperature: float) -> np.float32:
        """self._weights = exp((row - max) / temperature): 1.0 for the likeliest token. Returns the largest logit."""
        highest = row.max()
        weights = self._weights
        np.subtract(row, highest, out=weights)
        if temperature != 1.0:
            np.divide(weights, np.float32(temperature), out=weights)
        np.exp(weights, out=weights)
        return highest

    def _cumulative_chunks(self) -> np.ndarray:
        """float64 [num_chunks]: the sum of all weights up to the end of each chunk."""
        return np.cumsum(self._chunks.sum(axis=1), dtype=np.float64)

    def _truncated(self, row: np.ndarray, draw: Draw, total: float) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that top_k and top_p leave, likeliest first, and their cumulative weights."""
        top_k = draw.top_k if 0 < draw.top_k < self._vocab_size else 0
        for threshold in _THRESHOLDS:
            token_ids = np.flatnonzero(self._weights >= threshold)
            is_all = threshold == 0.0
            if len(token_ids) < top_k and not is_all:
                continue
            if top_k and len(token_ids) > 4 * top_k:
                token_ids = self._most_likely_of(row, token_ids, top_k)
            else:
                token_ids = _in_order(row, token_ids)[: top_k or None]
            cumulative = np.cumsum(self._weights[token_ids], dtype=np.float64)
            if draw.top_p >= 1.0:
                return token_ids, cumulative
            if top_k:
                total = cumulative[-1]
            if cumulative[-1] >= draw.top_p * total or is_all:
                count = int(np.searchsorted(cumulative, draw.top_p * total)) + 1
                return token_ids[:count], cumulative[:count]
        raise AssertionError("the last threshold takes every token")

    def _most_likely_of(self, row: np.ndarray, token_ids: np.ndarray, count: int) -> np.ndarray:
        logits = row[token_ids]
        kth = np.partition(logits, len(logits) - count)[len(logits) - count]
        return _in_order(row, token_ids[logits >= kth])[:count]


def _in_order(row: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
    """The ids sorted by logit, highest first; among equals the lower id first.

    Both go into one integer, since numpy sorts those several times as fast as it sorts indices by their values: above,
    the logit's bits turned round so that a higher logit is a lower number; below, the id.
    """
    bits = (row[token_ids] + np.float32(0.0)).view(np.int32)  # + 0.0: no negative zero, which equals the other one
    keys = np.where(bits < 0, bits & np.int32(0x7FFFFFFF), ~bits).astype(np.int64) << 32 | token_ids
    keys.sort()
    return keys & 0xFFFFFFFF


def _first_above(cumulative: np.ndarray, target: float) -> int:
    """The first index whose cumulative weight is above target: one with a weight of its own.

    Where rounding has put the target at or beyond the end it is the last one with a weight.
    """
    index = int(np.searchsorted(cumulative, target, side="right"))
    if index < len(cumulative):
        return index
    return int(np.searchsorted(cumulative, cumulative[-1]))
