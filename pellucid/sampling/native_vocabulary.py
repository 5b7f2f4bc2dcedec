"""The passes over logits that sampling needs, by the CPU kernels: rows shared among their threads, nothing sorted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pellucid.kernels.cpu.kernels import CpuKernels
from pellucid.kernels.interface import Kernels
from pellucid.sampling.vocabulary import Draw, NumpyVocabularyOps, VocabularyOps


def vocabulary_ops(kernels: Kernels, vocab_size: int) -> VocabularyOps:
    """The fastest there are beside these kernels."""
    return NativeVocabularyOps(kernels) if isinstance(kernels, CpuKernels) else NumpyVocabularyOps(vocab_size)


class NativeVocabularyOps(VocabularyOps):
    """A row gives the same on every number of threads; against NumpyVocabularyOps, exponentials differ in their last
    bit, so that a draw may differ where the random number falls on the border of two tokens."""

    def __init__(self, kernels: CpuKernels) -> None:
        self._passes = kernels.vocabulary_passes()

    def argmax(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = self._passes.argmax(logits)
        return np.array([token for token, _ in found], np.int64), np.array([logit for _, logit in found], np.float32)

    def log_normalizers(self, logits: np.ndarray, rows: Sequence[int]) -> list[float]:
        return self._passes.log_normalizers(logits, rows)

    def most_likely(self, logits: np.ndarray, rows: Sequence[int], counts: Sequence[int]) -> list[np.ndarray]:
        return [np.array(tokens, np.int64) for tokens in self._passes.most_likely(logits, rows, counts)]

    def ranks(self, logits: np.ndarray, rows: Sequence[int], token_ids: Sequence[int]) -> list[int]:
        return self._passes.ranks(logits, rows, token_ids)

    def draw(self, logits: np.ndarray, draws: Sequence[Draw]) -> list[int]:
        return self._passes.draw(logits, draws)

    def apply_bitmask(self, row: np.ndarray, bitmask: np.ndarray) -> None:
        self._passes.apply_mask(row, bitmask)
