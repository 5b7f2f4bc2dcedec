"""A request as the lessons see it, and the queue it waits in. Torch-free."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(eq=False)  # a task is itself, whatever it says
class Task:
    """Continue `token_ids` greedily by max_tokens tokens, whatever they are (no end of text, so that runs compare).

    arrival_s: seconds after the start of the run before which nobody knows of it.
    num_computed: how many of token_ids have their keys and values in the cache; kept by the stages that have one.
    """

    token_ids: list[int]
    max_tokens: int
    arrival_s: float = 0.0
    num_computed: int = 0
    token_times: list[float] = field(default_factory=list)  # time.perf_counter() of each output token
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        if not self.token_ids or self.max_tokens < 1:
            raise ValueError(f"a task of {len(self.token_ids)} tokens for {self.max_tokens} more: both at least 1")
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def max_len(self) -> int:
        """Tokens whose keys and values it needs in the end. The last one's are never read."""
        return self.num_prompt_tokens + self.max_tokens - 1

    @property
    def output(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_finished(self) -> bool:
        return len(self.token_ids) == self.num_prompt_tokens + self.max_tokens

    def append(self, token_id: int | None) -> None:
        """None: the step did not reach the task's last token, so that there is no next one yet."""
        if token_id is None:
            return
        self.token_ids.append(token_id)
        self.token_times.append(time.perf_counter())

    def fresh(self) -> Task:
        """The same task, not yet begun."""
        return Task(self.token_ids[: self.num_prompt_tokens], self.max_tokens, self.arrival_s)


class Queue:
    """Tasks in the order of their arrival. True while any is left, also one that has yet to arrive."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = deque(sorted(tasks, key=lambda task: task.arrival_s))
        self.start_time = time.perf_counter()

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def peek(self) -> Task | None:
        """The next task, if it has arrived."""
        if self._tasks and self._tasks[0].arrival_s <= time.perf_counter() - self.start_time:
            return self._tasks[0]
        return None

    def wait(self) -> None:
        """Sleep until the next task is there."""
        if self._tasks:
            time.sleep(max(self.start_time + self._tasks[0].arrival_s - time.perf_counter(), 0.0))

    def pop(self) -> Task:
        return self._tasks.popleft()

    def take(self, num_tasks: int) -> list[Task]:
        """Up to num_tasks of those that have arrived."""
        tasks: list[Task] = []
        while len(tasks) < num_tasks and self.peek():
            tasks.append(self.pop())
        return tasks

    def put_back(self, task: Task) -> None:
        """At the head: it had its turn already."""
        self._tasks.appendleft(task)
