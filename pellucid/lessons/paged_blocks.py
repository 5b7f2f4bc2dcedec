"""Stage 5: cut the cache into blocks, and give a request the next one when it has filled the last."""

from __future__ import annotations

from collections import OrderedDict

from pellucid.lessons.task import Queue, Task
from pellucid.lessons.workbench import Row, Workbench


class Blocks:
    """Who holds which blocks. A block is on the free list, or in the table of one task."""

    def __init__(self, bench: Workbench) -> None:
        self._blocks_for = bench.blocks_for
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(bench.num_blocks))  # in the order of reuse
        self.tables: dict[Task, list[int]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def fits(self, task: Task) -> bool:
        """Is there room for all its tokens so far?"""
        return self._blocks_for(len(task.token_ids)) <= self.num_free

    def admit(self, task: Task) -> int:
        """Give the task a table. Returns how many of its tokens are in the cache already: none."""
        self.tables[task] = []
        return 0

    def grow(self, task: Task, num_tokens: int) -> bool:
        """Make room for num_tokens tokens. False, and nothing changed, when there are too few free blocks."""
        table = self.tables[task]
        num_new = self._blocks_for(num_tokens) - len(table)
        if num_new > self.num_free:
            return False
        table += [self._take() for _ in range(num_new)]
        return True

    def computed(self, task: Task) -> None:
        """task.num_computed tokens are now in its blocks."""

    def release(self, task: Task) -> None:
        for block in reversed(self.tables.pop(task)):
            self._give_back(block)

    def _take(self) -> int:
        return self._free.popitem(last=False)[0]

    def _give_back(self, block: int) -> None:
        self._free[block] = None


def run(bench: Workbench, queue: Queue) -> None:
    """Static batches as in stage 3, on blocks: no rectangle, so no padding, and whoever is done leaves.

    Attention finds a token's keys and values through the block table: rows may differ in length, and a row's memory
    may lie anywhere. What is left of the rectangle is the waiting: the next batch begins when this one has ended.
    """
    blocks = Blocks(bench)
    while queue:
        queue.wait()
        running = queue.take(bench.max_batch)
        for task in running:
            task.num_computed = blocks.admit(task)
        while running:
            rows = []
            for task in running:
                if not blocks.grow(task, len(task.token_ids)):
                    raise ValueError(f"{bench.num_blocks} blocks are too few for {len(running)} requests")
                rows.append(Row(task, task.num_computed, len(task.token_ids), blocks.tables[task]))
            for task, token in zip(running, bench.step(rows), strict=True):
                task.num_computed = len(task.token_ids)
                task.append(token)
                if task.is_finished:
                    blocks.release(task)
            running = [task for task in running if not task.is_finished]
