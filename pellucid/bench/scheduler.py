"""`pellucid bench scheduler`: what a step costs beside the model, with a runner that computes nothing."""

from __future__ import annotations

import statistics
import time

from pellucid.core.kv_cache_manager import KVCacheManager
from pellucid.core.messages import EngineCoreRequest
from pellucid.core.scheduler import Scheduler, SchedulerConfig
from pellucid.core.scheduler_output import RunnerOutput, SampledRequest
from pellucid.observability.bus import EventBus
from pellucid.sampling.params import SamplingParams

_BLOCK_SIZE = 16
_PROMPT_TOKENS = 100


def scheduler_report(num_running: int = 256, num_steps: int = 200) -> dict[str, object]:
    """Decode num_running requests together for num_steps steps; medians and 99th percentiles in microseconds.

    The requests' lengths are spread over a block, so that each step fills, hashes and allocates as many blocks as a
    long run does on average.
    """
    num_steps += 2  # the first step computes the prompts, the last one ends every request
    max_len = _PROMPT_TOKENS + _BLOCK_SIZE + num_steps + 1
    kv = KVCacheManager(num_running * (max_len // _BLOCK_SIZE + 1), _BLOCK_SIZE)
    config = SchedulerConfig(num_running, max_num_batched_tokens=num_running * max_len, max_model_len=max_len)
    scheduler = Scheduler(config, kv, EventBus())
    for index in range(num_running):
        prompt = [index % 997 + 1] * (_PROMPT_TOKENS + index % _BLOCK_SIZE)
        params = SamplingParams(max_tokens=num_steps, seed=0)
        scheduler.add_request(
            EngineCoreRequest(request_id=f"r{index}", prompt_token_ids=prompt, sampling_params=params)
        )
    schedule_us, update_us = [], []
    for _ in range(num_steps):
        begin = time.perf_counter()
        scheduled = scheduler.schedule()
        decided = time.perf_counter()
        sampled = RunnerOutput([SampledRequest(token_ids=[7]) for _ in scheduled.requests])
        computed = time.perf_counter()
        scheduler.update_from_output(scheduled, sampled)
        schedule_us.append(1e6 * (decided - begin))
        update_us.append(1e6 * (time.perf_counter() - computed))
    decodes = slice(1, -1)
    both_us = [sum(pair) for pair in zip(schedule_us[decodes], update_us[decodes], strict=True)]
    return {
        "num_running": num_running,
        "num_steps": len(both_us),
        **_summary("schedule", schedule_us[decodes]),
        **_summary("update", update_us[decodes]),
        **_summary("step", both_us),
        "step_us_per_request": statistics.median(both_us) / num_running,
    }


def _summary(name: str, values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"{name}_us_median": statistics.median(ordered),
        f"{name}_us_p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
    }
