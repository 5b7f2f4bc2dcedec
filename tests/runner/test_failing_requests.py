"""What a request that fails alone costs the others, on a small random model in a whole engine."""

from __future__ import annotations

import math

import pytest
import torch

from pellucid.core.engine_core import EngineCore
from pellucid.core.messages import EngineCoreOutput, EngineCoreRequest
from pellucid.engine.build import LoadedModel
from tests.models.tiny import VOCAB_SIZE
from tests.runner.equivalence import engine, request
from tests.runner.test_equivalence import load

PREFIX = torch.randint(3, VOCAB_SIZE, (160,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(tmp_path_factory.mktemp("qwen3"), "qwen3", "torch", dtype="float32", enable_prefix_caching=True)


def last_output(core: EngineCore, value: EngineCoreRequest) -> EngineCoreOutput:
    core.add_request(value)
    outputs: list[EngineCoreOutput] = []
    while core.has_work():
        outputs += core.step().outputs
    return outputs[-1]


def test_a_request_that_contradicts_itself_costs_nobody_the_cached_prefix(loaded: LoadedModel) -> None:
    core = engine(loaded)
    contradiction = {"allowed_token_ids": (5,), "stop_token_ids": (5,), "min_tokens": 1}
    assert last_output(core, request("first", [*PREFIX, 3])).num_cached_tokens == 0
    refused = last_output(core, request("contradicts itself", [*PREFIX, 4], **contradiction))
    assert "no token is left" in (refused.error or "")
    assert last_output(core, request("innocent", [*PREFIX, 5])).num_cached_tokens == len(PREFIX)


def test_what_logits_that_are_no_numbers_came_from_is_found_by_nobody(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = engine(loaded)
    healthy = core.runner._forward  # type: ignore[attr-defined]
    monkeypatch.setattr(core.runner, "_forward", lambda batch: healthy(batch) * math.nan)
    assert "not finite" in (last_output(core, request("broken", [*PREFIX, 3], allowed_token_ids=(9,))).error or "")
    monkeypatch.undo()
    assert last_output(core, request("next", [*PREFIX, 4])).num_cached_tokens == 0
