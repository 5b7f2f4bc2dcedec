"""Lines that several processes write to the same place."""

from __future__ import annotations

from typing import TextIO


def write_line(line: str, out: TextIO) -> None:
    """In one write, newline included: print makes it two where Python is unbuffered (PYTHONUNBUFFERED, usual in
    containers), and another process's line lands between them.
    """
    out.write(line + "\n")
    out.flush()
