"""Where the time of an engine's step goes: the kernels one by one, and what surrounds them.

    python benchmarks/step.py MODEL [--quantization int8] [--batch 1,32] [--context 192] [--steps 40]

Drives an EngineCore as the server does, without the server. "tape" is the recorded forward pass, broken down by kind of
step (as seen by its first thread); the rest is Python: building the batch, sampling, scheduling, accounting.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pellucid.config import EngineConfig
from pellucid.core.messages import EngineCoreRequest
from pellucid.engine.build import build_engine_core
from pellucid.sampling.params import SamplingParams

PROFILED_STEPS = 5


@dataclass
class Timed:
    """A callable that notes how long each call took, in seconds."""

    call: Any
    seconds: list[float] = field(default_factory=list)

    def __call__(self, *args: Any) -> Any:
        begin = time.perf_counter()
        result = self.call(*args)
        self.seconds.append(time.perf_counter() - begin)
        return result


def measure(core: Any, num_reqs: int, prompt_len: int, num_steps: int, vocab_size: int) -> None:
    rng = np.random.default_rng(0)
    for i in range(num_reqs):
        params = SamplingParams(temperature=0.0, max_tokens=num_steps + 2, ignore_eos=True, seed=0)
        core.add_request(
            EngineCoreRequest(
                request_id=f"{prompt_len}-{i}",
                prompt_token_ids=rng.integers(0, vocab_size, prompt_len).tolist(),
                sampling_params=params,
            )
        )
    runner = core.runner
    tape = Timed(runner._forward)
    parts = {
        "build": Timed(runner._batches.build),
        "tape": tape,
        "sample": Timed(runner._sampler.sample),
        "schedule": Timed(core.scheduler.schedule),
        "update": Timed(core.scheduler.update_from_output),
    }
    num_profiled = 0
    originals = runner._forward, runner._batches.build, runner._sampler.sample
    runner._forward, runner._batches.build, runner._sampler.sample = tape, parts["build"], parts["sample"]
    core.scheduler.schedule, core.scheduler.update_from_output = parts["schedule"], parts["update"]
    whole: list[float] = []
    profiles: dict[str, float] = defaultdict(float)
    prefill: dict[str, float] = defaultdict(float)  # of its first step

    def profile() -> list[tuple[str, float]]:
        return originals[0].tape.profile(originals[0]._eager._step)

    while core.has_work():
        begin = time.perf_counter()
        core.step()
        whole.append(time.perf_counter() - begin)
        decoding = all(request.num_computed_tokens > prompt_len for request in core.scheduler.requests.values())
        if len(whole) == 1 and core.has_work():
            for name, seconds in profile():
                prefill[name] += seconds
        if decoding and num_profiled < PROFILED_STEPS and core.has_work():
            num_profiled += 1
            for name, seconds in profile():
                profiles[name] += seconds / PROFILED_STEPS
    runner._forward, runner._batches.build, runner._sampler.sample = originals
    del core.scheduler.schedule, core.scheduler.update_from_output

    decode = slice(-num_steps, -1) if num_steps > 1 else slice(None)
    prefill_ms, first_ms = 1e3 * sum(whole[:-num_steps]), 1e3 * whole[0]
    print(f"-- {num_reqs} requests of {prompt_len} tokens: prefill {prefill_ms:.1f} ms, its first step {first_ms:.1f}")
    print_profile(prefill)
    if num_steps <= 1:
        return
    total = statistics.median(whole[decode])
    print(f"   step {1e3 * total:.3f} ms = {num_reqs / total:.0f} tokens/s")
    for name, part in parts.items():
        print(f"   {name:10s} {1e3 * statistics.median(part.seconds[decode]):8.3f} ms")
    print_profile(profiles)


def print_profile(profile: dict[str, float]) -> None:
    for name, seconds in sorted(profile.items(), key=lambda item: -item[1]):
        print(f"      {name:40s} {1e3 * seconds:8.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--quantization")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--batch", default="1,32")
    parser.add_argument("--context", type=int, default=192)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    config = EngineConfig(
        model=args.model,
        quantization=args.quantization,
        int4_rounding="nearest",  # the same speed, and random weights have no tokenizer
        kv_cache_dtype=args.kv_cache_dtype,
        max_model_len=8192,
        max_num_seqs=64,
        kv_cache_memory=2 << 30,
        num_threads=args.threads,
        enable_prefix_caching=False,
    )
    core, ready = build_engine_core(config, lambda _: None)
    for num_reqs in map(int, args.batch.split(",")):
        measure(core, num_reqs, args.context, args.steps, ready.vocab_size)


if __name__ == "__main__":
    main()
