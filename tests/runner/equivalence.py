"""Runs requests through an EngineCore, and compares runs to the last bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from pellucid.core.engine_core import EngineCore
from pellucid.core.messages import EngineCoreRequest, FinishReason, SchedulerStats, TokenLogprob
from pellucid.engine.build import LoadedModel
from pellucid.sampling.params import SamplingParams


@dataclass
class Result:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] | None = None
    pooled: bytes | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass
class Run:
    """num_cached_tokens: over all requests. stats: after the last step."""

    results: dict[str, Result] = field(default_factory=dict)
    num_cached_tokens: int = 0
    num_steps: int = 0
    stats: SchedulerStats = field(default_factory=SchedulerStats)


def engine(loaded: LoadedModel, **config: Any) -> EngineCore:
    """A new engine around the loaded model; config: what is different from how it was loaded."""
    core, _, _ = replace(loaded, config=msgspec.structs.replace(loaded.config, **config)).engine_core()
    return core


def request(request_id: str, prompt: Sequence[int], *, output: Sequence[int] = (), **params: Any) -> EngineCoreRequest:
    values = {"seed": 0, "max_tokens": 12, "temperature": 0.0, **params}
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        output_token_ids=list(output),
        sampling_params=SamplingParams(**values),
        eos_token_ids=(2,),
    )


def run(core: EngineCore, requests: Iterable[EngineCoreRequest]) -> Run:
    """All of them submitted at once, until none is left and the pool is whole again."""
    done = Run()
    for value in requests:
        done.results[value.request_id] = Result(list(value.output_token_ids))
        core.add_request(value)
    for outputs in _steps(core):
        done.num_steps += 1
        done.stats = outputs.stats
        for output in outputs.outputs:
            assert output.error is None, output.error
            result = done.results[output.request_id]
            result.token_ids += output.new_token_ids
            result.logprobs += output.logprobs or []
            if output.prompt_logprobs is not None:
                assert result.prompt_logprobs is None, "told twice"
                result.prompt_logprobs = output.prompt_logprobs
            result.pooled = output.pooled
            if output.finish_reason is not None:
                result.finish_reason, result.stop_reason = output.finish_reason, output.stop_reason
                done.num_cached_tokens += output.num_cached_tokens
    assert done.stats.num_running == done.stats.num_waiting == 0
    assert done.stats.num_free_blocks == done.stats.num_blocks
    return done


def _steps(core: EngineCore):
    for _ in range(5000):
        if not core.has_work():
            return
        yield core.step()
    raise AssertionError("the engine does not come to an end")


def run_alone(core: EngineCore, requests: Iterable[EngineCoreRequest]) -> Run:
    """One after another, each with the engine to itself."""
    whole = Run()
    for value in requests:
        alone = run(core, [value])
        whole.results |= alone.results
        whole.num_steps += alone.num_steps
        whole.num_cached_tokens += alone.num_cached_tokens
    return whole


def assert_same_bits(got: Run, expected: Run) -> None:
    """Floats are compared as they are: one different bit in one log-probability fails."""
    assert got.results.keys() == expected.results.keys()
    for request_id, result in expected.results.items():
        assert got.results[request_id].token_ids == result.token_ids, request_id
        assert got.results[request_id] == result, request_id
