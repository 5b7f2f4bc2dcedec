"""Tokens that may not be sampled: their logits become -inf. Each function changes one row, [vocab_size], in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def allow_only(row: np.ndarray, token_ids: np.ndarray) -> None:
    kept = row[token_ids]
    row.fill(-np.inf)
    row[token_ids] = kept


def ban(row: np.ndarray, token_ids: Sequence[int] | np.ndarray) -> None:
    row[token_ids] = -np.inf


def endings_of_bad_words(words: Sequence[Sequence[int]], output_token_ids: list[int]) -> list[int]:
    """The tokens that would complete one of the words, given what has been generated so far."""
    num_output = len(output_token_ids)
    endings = []
    for word in words:
        num_before = len(word) - 1
        if num_before > num_output:
            continue
        if num_before == 0 or output_token_ids[num_output - num_before :] == list(word[:-1]):
            endings.append(word[-1])
    return endings


def apply_bitmask(row: np.ndarray, bitmask: np.ndarray) -> None:
    """bitmask: int32 [ceil(vocab_size / 32)]; bit i % 32 of word i // 32 is 1 where token i is allowed."""
    bits = np.unpackbits(bitmask.view(np.uint8), count=len(row), bitorder="little")
    row[bits == 0] = -np.inf
