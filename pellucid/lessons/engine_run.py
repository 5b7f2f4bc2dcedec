"""The same workload on the engine itself: where the ladder leads, measured as the stages are."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pellucid.core.block_accounting import num_blocks_for
from pellucid.core.engine_core import EngineCore
from pellucid.core.messages import EngineCoreRequest
from pellucid.lessons.ladder import Measurement, measurement_of
from pellucid.lessons.task import Task
from pellucid.lessons.workbench import Counts
from pellucid.observability.events import StepCompleted
from pellucid.sampling.params import SamplingParams

NAME = "the engine"


def run_engine(core: EngineCore, workload: Sequence[Task]) -> tuple[Measurement, list[Task]]:
    """workload: tasks that are there from the start. The engine samples greedily and ignores ends of text."""
    tasks = [task.fresh() for task in workload]
    counts = Counts()
    start_time = time.perf_counter()
    for index, task in enumerate(tasks):
        params = SamplingParams(temperature=0.0, max_tokens=task.max_tokens, ignore_eos=True, seed=0)
        core.add_request(
            EngineCoreRequest(request_id=str(index), prompt_token_ids=list(task.token_ids), sampling_params=params)
        )
    while core.has_work():
        _account_kv(core, counts)
        message = core.step()
        counts.tokens += sum(event.num_tokens for event in message.events if isinstance(event, StepCompleted))
        counts.steps += any(isinstance(event, StepCompleted) for event in message.events)
        for output in message.outputs:
            if output.error is not None:
                raise RuntimeError(output.error)
            for token_id in output.new_token_ids:
                tasks[int(output.request_id)].append(token_id)
    elapsed_s = time.perf_counter() - start_time
    return measurement_of(NAME, tasks, counts, start_time, elapsed_s), tasks


def _account_kv(core: EngineCore, counts: Counts) -> None:
    """Between steps, over the running requests; a block that several share is counted once."""
    fill: dict[int, int] = {}
    size = core.scheduler.kv.block_size
    for request in core.scheduler.running:
        for index in range(num_blocks_for(request.num_computed_tokens, size)):
            in_block = min(request.num_computed_tokens - index * size, size)
            block = request.block_table[index]
            fill[block] = max(fill.get(block, 0), in_block)
        fill |= {block: fill.get(block, 0) for block in request.block_table}
    reserved = len(fill) * size
    counts.kv_reserved += reserved
    counts.kv_used += sum(fill.values())
    counts.kv_reserved_peak = max(counts.kv_reserved_peak, reserved)
