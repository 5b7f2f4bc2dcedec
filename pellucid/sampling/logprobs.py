"""Log-probabilities of the unmodified distribution, in the form they leave the engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pellucid.core.messages import TokenLogprob
from pellucid.sampling.vocabulary import VocabularyOps

LOWEST_LOGPROB = -9999.0  # JSON has no -inf


def token_logprobs(
    ops: VocabularyOps,
    logits: np.ndarray,
    rows: Sequence[int],
    token_ids: Sequence[int],
    num_top: Sequence[int],
    more: Sequence[Sequence[int]] | None = None,
) -> list[TokenLogprob]:
    """For each of these rows: the token that stands there, then the others among the row's num_top likeliest, then what
    there is not yet of `more` tokens.

    logits: float32 [L, vocab_size], as the model gave them; the rows hold no NaN and no +inf.
    """
    if not rows:
        return []
    normalizers = ops.log_normalizers(logits, rows)
    ranks = ops.ranks(logits, rows, token_ids)
    tops = ops.most_likely(logits, rows, num_top)
    entries = []
    wanted = more if more is not None else [()] * len(rows)
    for row, token_id, normalizer, rank, top, others in zip(
        rows, token_ids, normalizers, ranks, tops, wanted, strict=True
    ):
        ids, id_ranks = [token_id], [rank]
        for place, other in enumerate(top.tolist(), 1):
            if other != token_id:
                ids.append(other)
                id_ranks.append(place)
        missing = [other for other in dict.fromkeys(others) if other not in ids]
        ids += missing
        id_ranks += ops.ranks(logits, [row] * len(missing), missing) if missing else []
        logprobs = [max(logit - normalizer, LOWEST_LOGPROB) for logit in logits[row, ids].tolist()]
        entries.append(TokenLogprob(token_ids=ids, logprobs=logprobs, ranks=id_ranks))
    return entries
