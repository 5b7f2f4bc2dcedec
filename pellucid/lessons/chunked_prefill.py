"""Stage 8: a step has a budget of tokens. A long prompt takes several steps, and everybody's next token is in each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pellucid.lessons.paged_blocks import Blocks
from pellucid.lessons.paged_continuous import serve
from pellucid.lessons.prefix_cache import SharedBlocks
from pellucid.lessons.task import Queue, Task
from pellucid.lessons.workbench import Row, Workbench


def run(bench: Workbench, queue: Queue) -> None:
    serve(bench, queue, SharedBlocks(bench), partial(within_budget, budget=bench.token_budget))


def within_budget(running: Sequence[Task], blocks: Blocks, budget: int) -> list[Row]:
    """First those that wait for their next token, one each; then prompts, in order, as far as the budget goes.

    A prompt for which nothing is left gets an empty row: it holds its blocks and waits. Where a chunk ends makes no
    difference to what is computed: attention reads earlier chunks from the cache as it reads everything else.
    """
    rows = []
    for task in sorted(running, key=_is_prompt):  # a stable sort: otherwise the oldest first
        num_tokens = min(len(task.token_ids) - task.num_computed, budget)
        budget -= num_tokens
        rows.append(Row(task, task.num_computed, task.num_computed + num_tokens, blocks.tables[task]))
    return rows


def _is_prompt(task: Task) -> bool:
    return len(task.token_ids) - task.num_computed > 1
