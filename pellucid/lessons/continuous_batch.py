"""Stage 4: decide anew before every step who is in the batch. A place that is free is taken at once."""

from __future__ import annotations

from pellucid.lessons.task import Queue, Task
from pellucid.lessons.workbench import Row, Workbench


def run(bench: Workbench, queue: Queue) -> None:
    """Requests join and leave between any two steps.

    The cache is still a rectangle, made for one set of rows. When somebody joins, the rectangle is thrown away, and all
    that runs is computed again beside the newcomer.
    """
    running: list[Task] = []
    buffers: dict[Task, range] = {}
    while running or queue:
        if not running:
            queue.wait()
        newcomers = queue.take(bench.max_batch - len(running))
        running += newcomers
        if newcomers:
            longest = max(len(task.token_ids) for task in running)
            width = bench.blocks_for(max(task.max_len for task in running))
            buffers = {task: range(row * width, (row + 1) * width) for row, task in enumerate(running)}

        rows = []
        for task in running:
            length = len(task.token_ids)
            if newcomers:
                rows.append(Row(task, 0, length, buffers[task], padding=longest - length))
            else:
                rows.append(Row(task, length - 1, length, buffers[task]))
        for task, token in zip(running, bench.step(rows), strict=True):
            task.append(token)
        running = [task for task in running if not task.is_finished]
