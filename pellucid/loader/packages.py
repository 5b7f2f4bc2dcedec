"""Python packages as carriers of model files: an installed distribution or a wheel, opened without running its code."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from pellucid.loader.errors import ModelError

MAX_METADATA_BYTES = 4 << 20
MAX_MEMBERS = 100_000

_REQUIREMENT = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\(?\s*==\s*([A-Za-z0-9][A-Za-z0-9._+!-]*)\s*\)?)?"
)


@dataclass(frozen=True)
class PackageName:
    """A package of the Python index, at one version or the newest."""

    name: str  # normalised: lower case, words joined by "-"
    version: str | None = None

    @classmethod
    def parse(cls, text: str) -> PackageName | None:
        """ "NAME" or "NAME==VERSION"; None for anything else, so that nothing of it can pass for an option of pip."""
        match = _REQUIREMENT.fullmatch(text.strip())
        if match is None:
            return None
        return cls(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Member:
    """A file of a package. path: where it lies on its own, None within a wheel."""

    name: str  # without directories
    size: int
    open: Callable[[], BinaryIO]
    path: Path | None = None


@dataclass(frozen=True)
class Package:
    name: PackageName
    version: str
    members: tuple[Member, ...]
    requires: tuple[PackageName, ...]


def installed_package(wanted: PackageName) -> Package | None:
    """The distribution in this environment, where it is there at the wanted version."""
    try:
        found = metadata.distribution(wanted.name)
    except metadata.PackageNotFoundError:
        return None
    if wanted.version not in (None, found.version):
        return None
    members = []
    for file in found.files or ():
        path = Path(str(found.locate_file(file)))
        if path.is_file():
            members.append(Member(path.name, path.stat().st_size, _opener(path), path))
    return Package(wanted, found.version, tuple(members), _requirements(found.requires or ()))


def wheel_package(wanted: PackageName, wheel: Path) -> Package:
    """Raises ModelError where the file is not a whole wheel."""
    try:
        archive = zipfile.ZipFile(wheel)
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        if len(entries) > MAX_MEMBERS:
            raise ModelError(f"{wheel.name}: {len(entries)} files; the limit is {MAX_MEMBERS}")
        about = [entry for entry in entries if re.fullmatch(r"[^/]+\.dist-info/METADATA", entry.filename)]
        if len(about) != 1 or about[0].file_size > MAX_METADATA_BYTES:
            raise ModelError(f"{wheel.name}: not a wheel: no usable METADATA")
        headers = HeaderParser().parsestr(archive.read(about[0]).decode("utf-8"))
    except (zipfile.BadZipFile, UnicodeDecodeError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"{wheel.name}: not a whole wheel ({error}); fetch it again") from error
    members = tuple(
        Member(re.split(r"[/\\]", entry.filename)[-1], entry.file_size, _entry_opener(archive, entry))
        for entry in entries
    )
    return Package(wanted, str(headers["Version"]), members, _requirements(headers.get_all("Requires-Dist") or ()))


def _requirements(lines: list[str] | tuple[str, ...]) -> tuple[PackageName, ...]:
    """Those without a condition; a version range counts as "the newest"."""
    names = []
    for line in lines:
        if ";" not in line:
            match = _REQUIREMENT.match(line.strip())
            if match is not None and (parsed := PackageName.parse(match[0])) is not None:
                names.append(parsed)
    return tuple(names)


def _opener(path: Path) -> Callable[[], BinaryIO]:
    return lambda: path.open("rb")


def _entry_opener(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Callable[[], BinaryIO]:
    return lambda: archive.open(entry)  # type: ignore[return-value]  # ZipExtFile reads like any binary file
