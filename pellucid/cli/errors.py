"""What a user sees when a command can't do what it was asked: one line with the cause, no traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import typer


@contextlib.contextmanager
def clean_errors() -> Iterator[None]:
    """Turn the errors a user can mend into one line on stderr and exit code 1; PELLUCID_TRACEBACK=1 shows the rest."""
    try:
        yield
    except typer.Exit:  # a RuntimeError by descent
        raise
    except (ValueError, OSError, RuntimeError) as error:
        if os.environ.get("PELLUCID_TRACEBACK"):
            raise
        print(f"pellucid: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
