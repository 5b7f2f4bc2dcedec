"""The scheduler's decision for one step, and the runner's answer. Plain data, torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from pellucid.core.messages import TokenLogprob
from pellucid.core.request import Request


class ScheduledRequest(msgspec.Struct, frozen=True):  # not a dataclass: hundreds are made each step
    """One request's share of a step: compute tokens [start, start + num_tokens) of it.

    There is no prefill and no decode here: a decode is num_tokens == 1 at the end of the sequence.
    """

    request: Request
    num_tokens: int
    start: int  # == request.num_computed_tokens when scheduled
    samples: bool  # these tokens reach the end of the sequence: a token is sampled (never of a request with pooling)

    @property
    def pools(self) -> bool:
        """These tokens reach the end of a prompt of which a vector is wanted."""
        return self.request.pooling is not None and self.start + self.num_tokens == self.request.num_tokens


@dataclass(frozen=True)
class SchedulerOutput:
    """step: counted from 1. requests: in batch order.

    preempted, finished_request_ids: since the last step. The runner may drop what it keeps for them, before it looks at
    `requests`: a preempted request may be among these again.
    """

    step: int
    requests: Sequence[ScheduledRequest]
    num_tokens: int
    preempted: Sequence[Request] = ()
    finished_request_ids: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.requests)


class SampledRequest(msgspec.Struct, frozen=True):
    """What the runner got for one scheduled request.

    token_ids: the sampled token, or nothing when the request has not reached its end. After it num_forced tokens that
    cannot be others, whatever their logits: their keys and values are not computed yet, and they are not sampled.
    error: this request alone failed. kv_in_doubt: then, whether what it computed may be wrong, too; False where only
    no token could be sampled.
    prompt_logprobs: for the prompt positions whose logits this step computed (start + 1, start + 2, ... up to the last
    position of the prompt), when asked for.
    """

    token_ids: list[int] = msgspec.field(default_factory=list)
    num_forced: int = 0
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    pooled: bytes | None = None  # where share.pools: the vector, float32 little-endian
    error: str | None = None
    kv_in_doubt: bool = True


@dataclass(frozen=True)
class RunnerOutput:
    """One entry per scheduled request, in the same order. sample_s: of the time it took, what sampling took."""

    requests: Sequence[SampledRequest]
    sample_s: float = 0.0
