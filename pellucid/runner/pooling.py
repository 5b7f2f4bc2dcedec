"""What a prompt comes to as one vector: hidden states after the final norm, of its last position or their mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pellucid.core.request import Request
from pellucid.core.scheduler_output import ScheduledRequest
from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.models.model import Model


@dataclass(frozen=True)
class _Sums:
    """totals: float64 [hidden], by the number of first positions they are of: before and after the last chunk."""

    request: Request
    totals: dict[int, np.ndarray]


class Pooler:
    """Keeps the sums of prompts that are computed in chunks, as long as their requests run.

    A sum is taken row by row from the first position on, so that its bits do not depend on where chunks begin. A step
    that is executed again finds the sums as they were: what made it fail may have come after they were added to.
    """

    def __init__(self) -> None:
        self._sums: dict[str, _Sums] = {}

    def __call__(
        self, model: Model, hidden: torch.Tensor, batch: ForwardBatch, shares: Sequence[ScheduledRequest]
    ) -> dict[int, bytes]:
        """hidden: [T, hidden_size], of model.forward(batch); shares: the requests of the batch, in order.

        The vector (float32 little-endian) for the index of each request that wants one and has reached its end.
        """
        rows, spans = _wanted_rows(shares)
        if not rows:
            return {}
        indices = torch.tensor(rows, dtype=torch.int32, device=hidden.device)
        states = model.final_hidden(hidden, replace(batch, logits_indices=indices)).float().cpu().numpy()
        vectors: dict[int, bytes] = {}
        for index, (begin, end) in spans.items():
            share = shares[index]
            if share.request.pooling == "last":
                pooled = states[end - 1]
            else:
                total = self._add(share, states[begin:end])
                pooled = (total / (share.start + share.num_tokens)).astype(np.float32)
            if share.pools:
                vectors[index] = pooled.astype("<f4").tobytes()
        return vectors

    def forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._sums.pop(request_id, None)

    def _add(self, share: ScheduledRequest, states: np.ndarray) -> np.ndarray:
        known = self._sums.get(share.request.request_id)
        if share.start == 0:
            before = np.zeros(states.shape[1], np.float64)
        elif known is not None and known.request is share.request and share.start in known.totals:
            before = known.totals[share.start]
        else:
            raise RuntimeError(f"the hidden states of the first {share.start} tokens are not there")
        total = before.copy()
        for row in states:  # one after another: numpy's own sums group rows by how many there are
            total += row
        totals = {share.start: before, share.start + share.num_tokens: total}
        self._sums[share.request.request_id] = _Sums(share.request, totals)
        return total


def _wanted_rows(shares: Sequence[ScheduledRequest]) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """Rows of the batch, and which of them, as [begin, end), are of the request at each index."""
    rows: list[int] = []
    spans: dict[int, tuple[int, int]] = {}
    end = 0
    for index, share in enumerate(shares):
        first, end = end, end + share.num_tokens
        if share.request.pooling == "mean" or share.pools:
            begin = len(rows)
            rows += range(first if share.request.pooling == "mean" else end - 1, end)
            spans[index] = (begin, len(rows))
    return rows, spans
