"""Where fetched models are kept, and writing there so that a half-written file is never taken for a whole one."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pellucid.loader.errors import ModelError

Progress = Callable[[int, "int | None", str], None]  # bytes done, bytes in all where known, what is being done

CHUNK_BYTES = 4 << 20
ABANDONED_S = 600.0  # a partial file that nobody has written to for so long: its writer is gone


def cache_dir() -> Path:
    """PELLUCID_CACHE, else ~/.cache/pellucid (or under XDG_CACHE_HOME). Not created here."""
    own = os.environ.get("PELLUCID_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pellucid"


@contextmanager
def disk_errors(directory: Path, what: str) -> Iterator[None]:
    """Turns a full or unwritable disk into a ModelError that says where and what for."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(directory, what) from error
        raise ModelError(f"{what}: {error.filename or directory}: {error.strerror or error}") from error


def disk_full(directory: Path, what: str, needed: int | None = None) -> ModelError:
    need = f"{needed} bytes are needed" if needed is not None else "more room is needed"
    try:
        free = f"{shutil.disk_usage(directory).free} are free"
    except OSError:
        free = "none is left"
    return ModelError(
        f"{what}: the disk is full: {need} in {directory}, {free}; make room, or set PELLUCID_CACHE to another disk"
    )


def write_atomically(
    target: Path, pieces: Iterable[BinaryIO], total: int, what: str, on_progress: Progress | None = None
) -> str:
    """Write the pieces one after another to `target`, which appears whole or not at all; returns the SHA-256 in hex.

    total: the bytes there must be in the end; anything else raises ModelError, and so does a disk without that room.
    What processes that were killed while they wrote `target` have left is removed.
    """
    with disk_errors(target.parent, what):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        if shutil.disk_usage(target.parent).free < total:
            raise disk_full(target.parent, what, total)
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        digest = hashlib.sha256()
        done = 0
        try:
            with partial.open("wb") as output:
                for piece in pieces:
                    while chunk := piece.read(min(CHUNK_BYTES, total - done + 1)):
                        done += len(chunk)
                        if done > total:
                            break
                        output.write(chunk)
                        digest.update(chunk)
                        if on_progress is not None:
                            on_progress(done, total, what)
                if done != total:
                    raise ModelError(f"{what}: more or fewer bytes than the {total} announced; fetch it again")
                output.flush()
                os.fsync(output.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return digest.hexdigest()


def _remove_abandoned(target: Path) -> None:
    # By age and not by process id: who shares the directory may run in another container, with ids of its own.
    for partial in target.parent.glob(f"{glob.escape(target.name)}.*.partial"):
        with suppress(FileNotFoundError):
            if time.time() - partial.stat().st_mtime > ABANDONED_S:
                partial.unlink()
