"""A progress bar on stderr for what takes time; nothing where stderr is no terminal but for a line a stage."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

ProgressCallback = Callable[[int, int | None, str], None]  # done, total (None: unknown), what


@contextlib.contextmanager
def stage_progress() -> Iterator[Callable[[str], None]]:
    """Yields a function to be told what begins now: a line that counts seconds, or lines without a terminal."""
    if not sys.stderr.isatty():
        yield lambda what: print(what, file=sys.stderr, flush=True)
        return

    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def begin(what: str) -> None:
            for task in progress.task_ids:
                progress.remove_task(task)
            progress.add_task(what, total=None)

        yield begin


@contextlib.contextmanager
def download_progress() -> Iterator[ProgressCallback]:
    """Yields on_progress(bytes done, bytes in all, what)."""
    if not sys.stderr.isatty():
        said: set[str] = set()

        def say_once(done: int, total: int | None, what: str) -> None:
            if what not in said:
                said.add(what)
                print(what, file=sys.stderr)

        yield say_once
        return

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(done: int, total: int | None, what: str) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total or None)
            progress.update(tasks[what], completed=done, total=total or None)

        yield show
