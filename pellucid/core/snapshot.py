"""The state of the scheduler and the KV pool as one event, for those who begin to watch in the middle."""

from __future__ import annotations

from pellucid.core.block_pool import short_hash
from pellucid.core.request import Request, RequestStatus
from pellucid.core.scheduler import Scheduler
from pellucid.observability.events import CachedBlock, EngineSnapshot, RequestState

_STATUS = {
    RequestStatus.WAITING: "waiting",
    RequestStatus.PREEMPTED: "preempted",
    RequestStatus.RUNNING: "running",
}


def snapshot(scheduler: Scheduler, time_s: float, paused: bool) -> EngineSnapshot:
    """Linear in the number of requests and blocks: for between two steps, not for every one."""
    kv, pool = scheduler.kv, scheduler.kv.pool
    waiting = sorted(
        (request for request in scheduler.requests.values() if request.status is not RequestStatus.RUNNING),
        key=lambda request: (request.priority, request.status is not RequestStatus.PREEMPTED, request.order),
    )
    return EngineSnapshot(
        time=time_s,
        step=scheduler.step,
        paused=paused,
        num_blocks=pool.num_blocks,
        block_size=kv.block_size,
        requests=[_state_of(request) for request in [*scheduler.running, *waiting]],
        cached_blocks=[
            CachedBlock(
                block_id=block.block_id,
                block_hash=short_hash(block.block_hash or b""),
                parent_hash=short_hash(block.parent_hash) if block.parent_hash else None,
                num_hits=block.num_hits,
                ref_cnt=block.ref_cnt,
            )
            for block in pool.cached_blocks()
        ],
        num_evictions=pool.num_evictions,
        prefix_cache_queries=kv.num_prefix_queries,
        prefix_cache_hits=kv.num_prefix_hits,
    )


def _state_of(request: Request) -> RequestState:
    return RequestState(
        request_id=request.request_id,
        status=_STATUS[request.status],
        arrival_time=request.arrival_time,
        num_prompt_tokens=request.num_prompt_tokens,
        num_tokens=request.num_tokens,
        max_num_tokens=request.max_num_tokens,
        pools=request.pooling is not None,
        num_computed_tokens=request.num_computed_tokens,
        num_cached_tokens=max(request.num_cached_tokens, 0),
        block_ids=list(request.block_table),
    )
