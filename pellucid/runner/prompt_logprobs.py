"""What the model thought of the prompt: log-probabilities of its tokens, for the requests that ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from pellucid.core.messages import TokenLogprob
from pellucid.core.scheduler_output import ScheduledRequest
from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.models.model import Model
from pellucid.sampling.logprobs import token_logprobs
from pellucid.sampling.sampler import NOT_FINITE, to_host
from pellucid.sampling.vocabulary import NumpyVocabularyOps, VocabularyOps

MAX_LOGITS_BYTES = 64 << 20


class PromptLogprobs:
    """The logits of a whole prompt would be larger than the model: they are computed some rows at a time.

    max_logits_bytes: of float32 logits that exist at once.
    """

    def __init__(
        self, vocab_size: int, ops: VocabularyOps | None = None, max_logits_bytes: int = MAX_LOGITS_BYTES
    ) -> None:
        self._ops = ops or NumpyVocabularyOps(vocab_size)
        self._max_rows = max(max_logits_bytes // (4 * vocab_size), 1)

    def __call__(
        self, model: Model, hidden: torch.Tensor, batch: ForwardBatch, shares: Sequence[ScheduledRequest]
    ) -> dict[int, list[TokenLogprob] | str]:
        """hidden: [T, hidden_size], of model.forward(batch); shares: the requests of the batch, in order.

        For the index of each request that owes prompt_logprobs: one entry for each prompt position p from start + 1 on
        whose logits, those of position p - 1, are in this step; or what went wrong with this request.
        """
        found: dict[int, list[TokenLogprob] | str] = {}
        first_row = 0
        for index, share in enumerate(shares):
            if share.request.owes_prompt_logprobs:
                found[index] = self._of_request(model, hidden, batch, share, first_row)
            first_row += share.num_tokens
        return found

    def _of_request(
        self, model: Model, hidden: torch.Tensor, batch: ForwardBatch, share: ScheduledRequest, first_row: int
    ) -> list[TokenLogprob] | str:
        request = share.request
        end = min(share.start + share.num_tokens, request.num_prompt_tokens - 1)
        num_top = request.sampling_params.prompt_logprobs or 0
        entries: list[TokenLogprob] = []
        for position in range(share.start, end, self._max_rows):
            num_rows = min(self._max_rows, end - position)
            begin = first_row + position - share.start
            indices = torch.arange(begin, begin + num_rows, dtype=torch.int32, device=hidden.device)
            logits = to_host(model.compute_logits(hidden, replace(batch, logits_indices=indices)))
            if not np.isfinite(logits.max(axis=-1)).all():
                return NOT_FINITE
            token_ids = request.token_ids[position + 1 : position + 1 + num_rows]
            entries += token_logprobs(self._ops, logits, range(num_rows), token_ids, [num_top] * num_rows)
        return entries
