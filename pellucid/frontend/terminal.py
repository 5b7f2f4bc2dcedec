"""What a person in front of a terminal gets from `LLM`: a progress bar, and a Ctrl-C that leaves the engine whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


@contextmanager
def ctrl_c_between_steps() -> Iterator[Callable[[], None]]:
    """Gives the call to make after each step: it raises KeyboardInterrupt if Ctrl-C was pressed.

    An exception in the middle of a step would leave the engine between two states. A second Ctrl-C does not wait. Where
    the program handles the signal itself, or off the main thread, where none arrives, nothing changes.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    if not on_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None
        return
    was_pressed = False

    def on_ctrl_c(number: int, frame: FrameType | None) -> None:
        nonlocal was_pressed
        if was_pressed:
            raise KeyboardInterrupt
        was_pressed = True

    def check() -> None:
        if was_pressed:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_ctrl_c)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class ProgressBar(Protocol):
    def advance(self, num_tokens: int, num_prompts: int) -> None:
        """So many tokens were generated, and so many prompts are finished, since the last call."""


class _NoBar:
    def advance(self, num_tokens: int, num_prompts: int) -> None: ...


@contextmanager
def progress_bar(wanted: bool, num_prompts: int, what: str = "prompts") -> Iterator[ProgressBar]:
    """On stderr: prompts done of all, time, tokens a second."""
    if not wanted or not num_prompts:
        yield _NoBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[speed]}"), console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=num_prompts, speed="")
        total_tokens = 0

        class RichBar:
            def advance(self, num_tokens: int, num_prompts: int) -> None:
                nonlocal total_tokens
                total_tokens += num_tokens
                elapsed = progress.tasks[0].elapsed
                speed = f"{total_tokens / elapsed:.1f} tokens/s" if elapsed else ""
                progress.update(task, advance=num_prompts, speed=speed)

        yield RichBar()
