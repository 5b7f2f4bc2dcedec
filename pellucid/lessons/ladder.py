"""The stages in their order, and what a run of one measures."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from pellucid.lessons import (
    chunked_prefill,
    continuous_batch,
    kv_cache,
    naive_recompute,
    paged_blocks,
    paged_continuous,
    prefix_cache,
    static_batch,
)
from pellucid.lessons.task import Queue, Task
from pellucid.lessons.workbench import Counts, Workbench

RunStage = Callable[[Workbench, Queue], None]

STAGES: dict[int, tuple[str, RunStage]] = {
    1: ("naive recompute", naive_recompute.run),
    2: ("KV cache", kv_cache.run),
    3: ("static batch", static_batch.run),
    4: ("continuous batch", continuous_batch.run),
    5: ("paged blocks", paged_blocks.run),
    6: ("paged continuous batch", paged_continuous.run),
    7: ("prefix cache", prefix_cache.run),
    8: ("chunked prefill", chunked_prefill.run),
}


@dataclass(frozen=True)
class Measurement:
    """One run of one stage. Times in seconds; shares are 0 to 1.

    ttft: arrival to first token. itl: between two tokens of one request. padding: share of the computed tokens that
    nobody asked for; recomputed: share that had been computed before. kv_held: tokens of cache that were reserved, mean
    over the steps; kv_waste: the share of it that held nothing of use (None: the stage keeps no cache).
    """

    name: str
    elapsed_s: float
    steps: int
    output_tokens: int
    computed_tokens: int
    tokens_per_second: float
    ttft_median_s: float
    ttft_p99_s: float
    itl_p99_s: float
    itl_max_s: float
    padding: float
    recomputed: float
    kv_held: float
    kv_held_peak: int
    kv_waste: float | None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def run_stage(bench: Workbench, name: str, run: RunStage, workload: Sequence[Task]) -> tuple[Measurement, list[Task]]:
    """The measurement, and the finished tasks in the workload's order."""
    tasks = [task.fresh() for task in workload]
    bench.reset()
    queue = Queue(tasks)
    run(bench, queue)
    end_time = time.perf_counter()
    if any(not task.is_finished for task in tasks):
        raise RuntimeError(f"stage {name!r} has left requests unfinished")
    return measurement_of(name, tasks, bench.counts, queue.start_time, end_time - queue.start_time), tasks


def measurement_of(
    name: str, tasks: Sequence[Task], counts: Counts, start_time: float, elapsed_s: float
) -> Measurement:
    """start_time: of time.perf_counter(), as in the tasks' token_times."""
    num_output = sum(len(task.output) for task in tasks)
    ttft = [task.token_times[0] - start_time - task.arrival_s for task in tasks]
    gaps = [b - a for task in tasks for a, b in zip(task.token_times, task.token_times[1:], strict=False)]
    return Measurement(
        name=name,
        elapsed_s=elapsed_s,
        steps=counts.steps,
        output_tokens=num_output,
        computed_tokens=counts.tokens,
        tokens_per_second=num_output / elapsed_s,
        ttft_median_s=statistics.median(ttft),
        ttft_p99_s=percentile(ttft, 99),
        itl_p99_s=percentile(gaps, 99) if gaps else 0.0,
        itl_max_s=max(gaps, default=0.0),
        padding=counts.padding_tokens / counts.tokens,
        recomputed=counts.recomputed_tokens / counts.tokens,
        kv_held=counts.kv_reserved / counts.steps,
        kv_held_peak=counts.kv_reserved_peak,
        kv_waste=1 - counts.kv_used / counts.kv_reserved if counts.kv_reserved else None,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least percent % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)]
