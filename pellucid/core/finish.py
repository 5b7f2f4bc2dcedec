"""When a request is at its end, by its tokens alone. Stop strings are the front end's affair: it sees text."""

from __future__ import annotations

from typing import NamedTuple

from pellucid.core.messages import FinishReason
from pellucid.core.request import Request


class Ending(NamedTuple):
    """stop_reason: the stop token asked for in stop_token_ids; None for EOS and for a length limit."""

    reason: FinishReason
    stop_reason: int | None = None


_EOS = Ending(FinishReason.STOP)
_LENGTH = Ending(FinishReason.LENGTH)


def find_ending(request: Request) -> Ending | None:
    """Does the request end with its last token, an output token? A stop token wins over a length limit."""
    num_tokens = len(request.token_ids)
    if num_tokens - request.num_prompt_tokens >= request.sampling_params.min_tokens:
        last = request.token_ids[-1]
        if last in request.eos_token_ids:
            return _EOS
        if last in request.stop_token_ids:
            return Ending(FinishReason.STOP, last)
    return _LENGTH if num_tokens >= request.max_num_tokens else None
