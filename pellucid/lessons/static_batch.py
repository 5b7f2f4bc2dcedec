"""Stage 3: reading the weights is most of a decode step. Read them once for several requests."""

from __future__ import annotations

from pellucid.lessons.task import Queue
from pellucid.lessons.workbench import Row, Workbench


def run(bench: Workbench, queue: Queue) -> None:
    """Batches of max_batch requests, each in a rectangle: as many columns as the longest prompt and answer need.

    Prompts are padded to the longest one. The batch goes on until its last request is done; the rows of those that
    finished before are still there, and are still computed.
    """
    while queue:
        queue.wait()
        batch = queue.take(bench.max_batch)
        longest_prompt = max(task.num_prompt_tokens for task in batch)
        num_steps = max(task.max_tokens for task in batch)
        width = bench.blocks_for(longest_prompt + num_steps)
        buffers = [range(row * width, (row + 1) * width) for row in range(len(batch))]

        rows = [
            Row(task, 0, task.num_prompt_tokens, buffer, padding=longest_prompt - task.num_prompt_tokens)
            for task, buffer in zip(batch, buffers, strict=True)
        ]
        for step in range(num_steps):
            for task, token in zip(batch, bench.step(rows), strict=True):
                task.append(token)
            rows = []
            for task, buffer in zip(batch, buffers, strict=True):
                position = task.num_prompt_tokens + step
                if task.is_finished:  # a rectangle has no fewer rows because one of them is done
                    rows.append(Row(task, position, position, buffer, padding=1))
                else:
                    rows.append(Row(task, position, position + 1, buffer))
