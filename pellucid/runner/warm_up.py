"""A step of made-up requests: the first real one finds code and weights in memory, and the largest can be measured."""

from __future__ import annotations

from pellucid.core.messages import EngineCoreRequest
from pellucid.core.request import Request
from pellucid.core.scheduler_output import ScheduledRequest, SchedulerOutput
from pellucid.sampling.params import SamplingParams


def made_up_step(num_blocks: int, block_size: int, num_tokens: int, num_reqs: int) -> SchedulerOutput:
    """num_reqs requests of together num_tokens prompt tokens, or fewer where the pool is smaller.

    They write into blocks from 0 on that are nobody's yet.
    """
    longest = num_blocks * block_size // num_reqs
    shares = []
    next_block = 0
    for index in range(num_reqs):
        length = min(num_tokens // num_reqs + (index < num_tokens % num_reqs), longest)
        needed = -(-length // block_size)
        if length == 0 or next_block + needed > num_blocks:
            break
        value = EngineCoreRequest(
            request_id=f"warm-up-{index}",
            prompt_token_ids=[0] * length,
            sampling_params=SamplingParams(seed=0, max_tokens=1, temperature=1.0, top_p=0.9),
        )
        request = Request(value)
        request.block_table = list(range(next_block, next_block + needed))
        next_block += needed
        shares.append(ScheduledRequest(request, length, 0, True))
    return SchedulerOutput(0, shares, sum(share.num_tokens for share in shares))
