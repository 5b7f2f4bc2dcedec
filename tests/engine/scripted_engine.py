"""An engine core without a model: tokens follow from the request's value alone, and prompts order its misfortunes.

Used as `--builder scripted_engine:build`; the config's model name chooses how loading goes, see `build`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from pellucid.config import EngineConfig
from pellucid.core.messages import (
    ControlAction,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineLoading,
    EngineReady,
    FinishReason,
    SchedulerStats,
    TokenLogprob,
)
from pellucid.engine import wire

BUILDER = "scripted_engine:build"
KILLS_ENGINE = 900  # a prompt that begins with it kills the process in each step that runs it
RAISES_IN_STEP = 901
HANGS_IN_STEP = 902
REFUSED = 903
VOCAB_SIZE = 1000
NUM_BLOCKS = 1000


def token_at(prompt_token_ids: Sequence[int], index: int) -> int:
    """The token that stands at `index` of the output: a letter."""
    return 97 + (sum(prompt_token_ids) * 31 + index * index + index // 7) % 26


def output_of(prompt_token_ids: Sequence[int], num_tokens: int) -> list[int]:
    return [token_at(prompt_token_ids, i) for i in range(num_tokens)]


@dataclass
class _Running:
    value: EngineCoreRequest
    output: list[int]
    is_new: bool = True


@dataclass
class ScriptedCore:
    """max_num_seqs requests get a token each a step, which takes step_s."""

    step_s: float = 0.0
    max_num_seqs: int = 8
    requests: dict[str, _Running] = field(default_factory=dict)
    steps: int = 0

    def add_request(self, request: EngineCoreRequest) -> None:
        if request.prompt_token_ids[0] == REFUSED:
            raise ValueError("this prompt is refused")
        self.requests[request.request_id] = _Running(request, list(request.output_token_ids))

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self.requests.pop(request_id, None)

    def watch(self, detail: bool) -> None:
        """It has no events to tell."""

    def control(self, action: ControlAction) -> None:
        """It has no scheduler to stop."""

    def has_work(self) -> bool:
        return bool(self.requests)

    def step(self) -> EngineCoreOutputs:
        running = list(self.requests.values())[: self.max_num_seqs]
        outputs = []
        if running:
            self.steps += 1
            time.sleep(self.step_s)
            outputs = [self._advance(request) for request in running]
        num_left = len(self.requests)
        stats = SchedulerStats(
            step=self.steps,
            num_running=min(num_left, self.max_num_seqs),
            num_waiting=max(0, num_left - self.max_num_seqs),
            num_blocks=NUM_BLOCKS,
            num_free_blocks=NUM_BLOCKS - num_left,
            prefix_cache_queries=self.steps,
        )
        return EngineCoreOutputs(outputs=outputs, stats=stats)

    def _advance(self, request: _Running) -> EngineCoreOutput:
        value, params = request.value, request.value.sampling_params
        first = value.prompt_token_ids[0]
        if first == KILLS_ENGINE:
            os.kill(os.getpid(), signal.SIGKILL)
        elif first == RAISES_IN_STEP:
            raise RuntimeError("the scripted step fails")
        elif first == HANGS_IN_STEP and not os.path.exists(str(value.cache_salt)):
            open(str(value.cache_salt), "w").close()  # once: the next engine finds the file
            time.sleep(1000)
        token_id = token_at(value.prompt_token_ids, len(request.output))
        request.output.append(token_id)
        finish_reason = None
        if token_id in params.stop_token_ids:
            finish_reason = FinishReason.STOP
        elif len(request.output) == params.max_tokens:
            finish_reason = FinishReason.LENGTH
        if finish_reason is not None:
            del self.requests[value.request_id]
        prompt_logprobs = None
        if request.is_new and params.prompt_logprobs is not None:
            prompt_logprobs = [TokenLogprob([t], [-1.0], [1]) for t in value.prompt_token_ids[1:]]
        logprobs = None if params.logprobs is None else [TokenLogprob([token_id], [-len(request.output) / 8], [1])]
        # a replayed request finds more of itself in the cache, as a real one may
        num_cached = 0 if request.is_new and not value.output_token_ids else 7
        request.is_new = False
        return EngineCoreOutput(
            request_id=value.request_id,
            new_token_ids=[token_id],
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=num_cached,
            finish_reason=finish_reason,
            stop_reason=token_id if finish_reason is FinishReason.STOP else None,
        )


READY = EngineReady(
    max_model_len=512,
    num_blocks=NUM_BLOCKS,
    block_size=16,
    vocab_size=VOCAB_SIZE,
    max_num_seqs=8,
    max_num_batched_tokens=512,
    device="none",
    dtype="none",
    kernels="scripted",
)


def build(
    config: EngineConfig, on_progress: Callable[[EngineLoading], None] = lambda _: None
) -> tuple[ScriptedCore, EngineReady]:
    """Model names: "quick"; "slow" (20 ms a step); "bad" (an error); "dies" (always, while it loads);
    "dies-once:FILE" (until FILE exists, which it makes); "stalls:FILE" (loads until FILE exists); "small-frames"
    (takes and sends no more than 4000 bytes in a message); "shrinks:FILE" (once FILE exists, which it makes, there is
    less memory)."""
    on_progress(EngineLoading(stage="reading the script", fraction=0.5))
    name, _, path = config.model.partition(":")
    if name == "bad":
        raise ValueError("no such script") from FileNotFoundError("script.txt is missing")
    if name == "dies" or (name == "dies-once" and not os.path.exists(path)):
        if path:
            open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "small-frames":
        wire.MAX_FRAME_BYTES = 4000
    while name == "stalls" and not os.path.exists(path):
        time.sleep(0.01)
    ready = READY
    if name == "shrinks":
        share = 2 if os.path.exists(path) else 1
        open(path, "w").close()
        ready = msgspec.structs.replace(
            ready,
            max_model_len=config.max_model_len or READY.max_model_len // share,
            num_blocks=config.num_kv_blocks or READY.num_blocks // share,
        )
    return ScriptedCore(step_s=0.02 if name == "slow" else 0.002, max_num_seqs=config.max_num_seqs), ready
