"""The masks of a step, computed on threads while the model computes the logits that they are for."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from pellucid.structured.rules import OutputState

NUM_THREADS = 2


class RuledRow:
    """One request of a step: its tokens, and what its output obeys. mask: None where every token may follow."""

    def __init__(self, state: OutputState, token_ids: list[int], num_prompt_tokens: int) -> None:
        self.state = state
        self.mask: np.ndarray | None = None
        self._token_ids = token_ids
        self._num_prompt_tokens = num_prompt_tokens

    def advance(self) -> None:
        self.state.advance(self._token_ids, self._num_prompt_tokens)


class StepMasks:
    """`begin` before the forward pass, `wait` after it. The masks are good until the next `begin`."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = (vocab_size + 31) // 32
        self._masks = np.zeros((0, self._num_words), np.int32)
        self._thread: ThreadPoolExecutor | None = None
        self._executor: Any = None
        self._future: Future[None] | None = None

    def begin(self, rows: Sequence[RuledRow]) -> None:
        self.wait()  # of a step that failed
        if not rows:
            return
        if self._thread is None:
            from llguidance import LLExecutor

            self._thread = ThreadPoolExecutor(1, thread_name_prefix="pellucid-masks")
            self._executor = LLExecutor(NUM_THREADS)
        if len(self._masks) < len(rows):
            self._masks = np.zeros((2 * len(rows), self._num_words), np.int32)
        self._future = self._thread.submit(self._compute, rows)

    def wait(self) -> None:
        if self._future is not None:
            future, self._future = self._future, None
            future.result()

    def _compute(self, rows: Sequence[RuledRow]) -> None:
        asked = []
        for i, row in enumerate(rows):
            row.advance()
            if (matcher := row.state.matcher_to_ask) is not None:
                asked.append((matcher, i))
        if asked:
            masks = self._masks
            self._executor.unsafe_compute_mask_ptr(asked, masks.ctypes.data, masks.shape[1] * 4, len(masks))
        for i, row in enumerate(rows):
            row.mask = self._masks[i] if row.state.error is None and row.state.finish_mask(self._masks[i]) else None
