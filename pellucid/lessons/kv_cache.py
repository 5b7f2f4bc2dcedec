"""Stage 2: the keys and values of a token never change once it is written. Keep them."""

from __future__ import annotations

from pellucid.lessons.task import Queue
from pellucid.lessons.workbench import Row, Workbench


def run(bench: Workbench, queue: Queue) -> None:
    """One request at a time; the first step computes the prompt, every later one a single token.

    The buffer is one stretch of memory, large enough for whatever comes: nobody knows yet how long an answer gets.
    """
    buffer = range(bench.num_blocks // bench.max_batch)
    while queue:
        queue.wait()
        task = queue.pop()
        num_computed = 0
        while not task.is_finished:
            [token] = bench.step([Row(task, num_computed, len(task.token_ids), buffer)])
            num_computed = len(task.token_ids)
            task.append(token)
