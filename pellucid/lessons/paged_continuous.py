"""Stage 6: continuous batching on blocks. Nothing is rebuilt when somebody joins, and memory is promised to nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pellucid.lessons.paged_blocks import Blocks
from pellucid.lessons.task import Queue, Task
from pellucid.lessons.workbench import Row, Workbench

ShareOut = Callable[[Sequence[Task], Blocks], list[Row]]  # how far each running task gets in this step


def run(bench: Workbench, queue: Queue) -> None:
    serve(bench, queue, Blocks(bench), everything)


def everything(running: Sequence[Task], blocks: Blocks) -> list[Row]:
    """Compute all that is not computed yet: of a newcomer the prompt, of the others one token."""
    return [Row(task, task.num_computed, len(task.token_ids), blocks.tables[task]) for task in running]


def serve(bench: Workbench, queue: Queue, blocks: Blocks, share_out: ShareOut) -> None:
    """Let those that run grow, let newcomers in while there is room, make a step; until all is done."""
    running: list[Task] = []
    while running or queue:
        for task in list(running):  # the oldest first
            while task in running and not blocks.grow(task, len(task.token_ids)):
                _preempt_newest(running, queue, blocks)
        if not running:
            queue.wait()
        while len(running) < bench.max_batch and (newcomer := queue.peek()) and blocks.fits(newcomer):
            running.append(queue.pop())
            newcomer.num_computed = blocks.admit(newcomer)
            blocks.grow(newcomer, len(newcomer.token_ids))
        if not running:
            raise ValueError(f"a request needs more than {bench.num_blocks} blocks")

        rows = share_out(running, blocks)
        for row, token in zip(rows, bench.step(rows), strict=True):
            row.task.num_computed = row.end
            blocks.computed(row.task)
            row.task.append(token)
            if row.task.is_finished:
                blocks.release(row.task)
        running = [task for task in running if not task.is_finished]


def _preempt_newest(running: list[Task], queue: Queue, blocks: Blocks) -> None:
    """Back to the head of the queue. The tokens so far are all it needs: what it had computed is computed again."""
    newest = running.pop()
    blocks.release(newest)
    queue.put_back(newest)
