"""What one piece from the engine brings, told to all of its readers in one go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Rounds:
    """Calls what was added once the event loop has taken in all that was there to read.

    A step has news for every stream: a callback for all of them costs a fraction of waking a task for each. Where the
    loop has fallen behind, several steps make one round, and a stream's news of them one delta.
    """

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def add(self, tell: Callable[[], None]) -> None:
        """tell: raises nothing."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._run)
        self._due.append(tell)

    def _run(self) -> None:
        due, self._due = self._due, []
        for tell in due:
            tell()
