"""Stage 1: a language model maps tokens to the next token. Call it in a loop."""

from __future__ import annotations

from pellucid.lessons.task import Queue
from pellucid.lessons.workbench import Row, Workbench


def run(bench: Workbench, queue: Queue) -> None:
    """One request at a time; every step computes the whole sequence anew and keeps one number of it: the next token."""
    while queue:
        queue.wait()
        task = queue.pop()
        while not task.is_finished:
            length = len(task.token_ids)
            scratch = range(bench.blocks_for(length))  # attention needs keys and values somewhere while it computes
            [token] = bench.step([Row(task, 0, length, scratch)], keeps_kv=False)
            task.append(token)
