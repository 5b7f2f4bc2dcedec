"""Requests and scheduled steps, by hand."""

from __future__ import annotations

from pellucid.core.messages import EngineCoreRequest
from pellucid.core.request import Request
from pellucid.core.scheduler_output import ScheduledRequest, SchedulerOutput
from pellucid.sampling.params import SamplingParams


def make_request(request_id: str, prompt: list[int], blocks: list[int] | None = None, **params) -> Request:
    values = {"seed": 0, "max_tokens": 16, "temperature": 0.0, **params}
    value = EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(**values),
        eos_token_ids=(0,),
    )
    request = Request(value)
    request.block_table = list(blocks or [])
    return request


def step(*shares: tuple[Request, int, int], number: int = 1, finished: tuple[str, ...] = ()) -> SchedulerOutput:
    """shares: (request, start, num_tokens)."""
    requests = [
        ScheduledRequest(request, num_tokens, start, start + num_tokens == request.num_tokens)
        for request, start, num_tokens in shares
    ]
    return SchedulerOutput(number, requests, sum(share.num_tokens for share in requests), (), finished)
