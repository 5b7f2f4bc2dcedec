"""The masks of a step, computed on threads while the model computes the logits that they are for; and what follows
where a mask leaves a single token.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from pellucid.structured.compiler import fill_mask
from pellucid.structured.rules import OutputRules, OutputState

NUM_THREADS = 2

logger = logging.getLogger(__name__)


class RuledRow:
    """One request: its tokens, and what its output obeys. mask: None where every token may follow.

    token_ids: the request's own list of prompt and output tokens, which grows as the request does. The state may be
    ahead of it by what `push` was told.
    """

    def __init__(self, rules: OutputRules, token_ids: list[int], num_prompt_tokens: int) -> None:
        self.state: OutputState = rules.new_state()
        self.mask: np.ndarray | None = None
        self._rules = rules
        self._num_words = num_words(rules.vocabulary.vocab_size)
        self._token_ids = token_ids
        self._num_prompt_tokens = num_prompt_tokens
        self._mask_is_after = -1  # so many output tokens, if only_next made it

    def catch_up(self) -> bool:
        """Bring the state to the request's tokens. Returns whether the mask of what follows is yet to be made."""
        if self.state.num_taken > len(self._token_ids) - self._num_prompt_tokens:
            # It went ahead in a step that failed and is made again. A state cannot go back, but it can be made anew.
            self.state, self._mask_is_after = self._rules.new_state(), -1
        self.state.advance(self._token_ids, self._num_prompt_tokens)
        return self._mask_is_after != self.state.num_taken

    def push(self, token_id: int) -> None:
        """A token that the request is about to get."""
        self.state.take(token_id)

    def only_next(self) -> int | None:
        """The token that must come next: where the mask leaves that one alone, its logits need not be known.

        None where there is more than one, or it cannot be told quickly. A mask that was made to find out is kept: the
        next step need not make it again.
        """
        state = self.state
        if not state.may_be_forced():
            return None
        mask = np.zeros(self._num_words, np.int32)
        if (matcher := state.matcher_to_ask) is not None:
            fill_mask(matcher, mask)
        self.mask = mask if state.finish_mask(mask) else None
        self._mask_is_after = state.num_taken
        return None if state.error is not None or self.mask is None else _only_token(mask)


class StepMasks:
    """`begin` before the forward pass, `wait` after it. The masks are good until the next `begin`."""

    def __init__(self, vocab_size: int) -> None:
        self._masks = np.zeros((0, num_words(vocab_size)), np.int32)
        self._thread: ThreadPoolExecutor | None = None
        self._executor: Any = None
        self._future: Future[None] | None = None

    def begin(self, rows: Sequence[RuledRow]) -> None:
        if self._future is not None:  # of a step that failed, and whose masks nobody waited for
            future, self._future = self._future, None
            if (error := future.exception()) is not None:  # no fault of the rows that come now
                logger.warning("the masks of a step that failed could not be computed: %s", error)
        if not rows:
            return
        if self._thread is None:
            from llguidance import LLExecutor

            self._thread = ThreadPoolExecutor(1, thread_name_prefix="pellucid-masks")
            self._executor = LLExecutor(NUM_THREADS)
        if len(self._masks) < len(rows):
            self._masks = np.zeros((2 * len(rows), self._masks.shape[1]), np.int32)
        self._future = self._thread.submit(self._compute, rows)

    def wait(self) -> None:
        if self._future is not None:
            future, self._future = self._future, None
            future.result()

    def _compute(self, rows: Sequence[RuledRow]) -> None:
        masks = self._masks
        rows = [row for row in rows if row.catch_up()]
        asked = [(matcher, i) for i, row in enumerate(rows) if (matcher := row.state.matcher_to_ask) is not None]
        if asked:
            self._executor.unsafe_compute_mask_ptr(asked, masks.ctypes.data, masks.shape[1] * 4, len(masks))
        for row, mask in zip(rows, masks, strict=False):
            row.mask = mask if row.state.error is None and row.state.finish_mask(mask) else None


def num_words(vocab_size: int) -> int:
    """Of 32 bits, in a mask."""
    return (vocab_size + 31) // 32


def _only_token(mask: np.ndarray) -> int | None:
    """The only one that it leaves, if it leaves one."""
    words = np.flatnonzero(mask)
    if len(words) != 1:
        return None
    bits = int(mask.view(np.uint32)[words[0]])
    return None if bits & (bits - 1) else 32 * int(words[0]) + bits.bit_length() - 1
