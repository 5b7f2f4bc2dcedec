"""Every kind of name leads to files, and every wrong one to an error that names it and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from pellucid.loader.cache import cache_dir
from pellucid.loader.errors import ModelError, ModelNotFoundError
from pellucid.loader.model_files import ModelFiles
from pellucid.loader.resolve import resolve_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "some-model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"")
    return path


def test_a_directory(directory: Path) -> None:
    assert resolve_model(str(directory)) == ModelFiles(str(directory), directory)
    assert resolve_model(str(directory)).name == "some-model"


def test_a_gguf_file_and_the_directory_it_is_alone_in(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    for ref in (str(file), str(tmp_path)):
        assert resolve_model(ref) == ModelFiles(ref, tmp_path, file)
    assert resolve_model(str(file)).name == "m"


def test_the_home_directory_is_known(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(directory.parent))
    assert resolve_model("~/some-model").directory == directory


def test_of_several_gguf_files_one_must_be_named(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"name one of them: a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_refused_by_name(name: str, directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / name).write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match=rf"pickle files \({name}\).*safetensors"):
        resolve_model(str(directory))
    with pytest.raises(ModelError, match=rf"{name}: a pickle file"):
        resolve_model(str(directory / name))


def test_a_directory_that_is_no_model_says_what_it_lacks(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no model\.safetensors"):
        resolve_model(str(directory))
    (directory / "config.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no config\.json, and no \.gguf file"):
        resolve_model(str(directory))


@pytest.mark.parametrize(
    "ref",
    [
        "",
        "no-such-thing",
        "./no/such",
        "/no/such/m.gguf",
        "../x/y",
        "~/no-such-model",
        "a/b/c",
        "a b/c",
        "x" * 5000,
        "a\0b",
    ],
)
def test_a_name_that_leads_nowhere_says_what_would(ref: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve_model(ref)
    if len(ref) < 100:
        assert "pypi:PACKAGE" in str(caught.value)
        assert repr(ref) in str(caught.value)


def test_another_file_is_no_model(directory: Path) -> None:
    with pytest.raises(ModelError, match=r"only \.gguf files are models on their own"):
        resolve_model(str(directory / "model.safetensors"))


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PELLUCID_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "pellucid"
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
