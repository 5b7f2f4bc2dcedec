"""`pellucid bench latency | throughput | prefill`: the engine in this process, on random prompts."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass

from pellucid.bench.workloads import random_prompts
from pellucid.frontend.outputs import RequestOutput
from pellucid.llm import LLM
from pellucid.sampling.params import SamplingParams


@dataclass(frozen=True)
class BenchResult:
    """Medians over the requests of one run; times in seconds, rates in tokens a second.

    ttft: submission to first token. tpot: time per output token after the first.
    decode_tokens_per_second: output tokens after the first of all requests / time from the first to the last of them.
    output_tokens_per_second: all output tokens / whole time, prefill included.
    prefill_tokens_per_second: all prompt tokens / time until the last request has its first token.
    """

    benchmark: str
    model: str
    kernels: str
    dtype: str
    num_prompts: int
    input_len: int
    output_len: int
    elapsed_seconds: float
    ttft_seconds: float
    tpot_seconds: float
    decode_tokens_per_second: float
    output_tokens_per_second: float
    prefill_tokens_per_second: float
    peak_rss_bytes: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def run_benchmark(
    llm: LLM, benchmark: str, num_prompts: int, input_len: int, output_len: int, seed: int = 0
) -> BenchResult:
    """latency: the prompts one after another; throughput and prefill: all at once. EOS is ignored, sampling greedy."""
    prompts = random_prompts(num_prompts, input_len, llm.ready.vocab_size, seed)
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)
    warm_up = random_prompts(1, min(input_len, 32), llm.ready.vocab_size, seed + 1)
    llm.generate(warm_up, SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True), use_tqdm=False)

    start = time.perf_counter()
    outputs: list[RequestOutput] = []
    if benchmark == "latency":
        for prompt in prompts:
            outputs += llm.generate([prompt], params, use_tqdm=False)
    else:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - start

    first = [o.metrics.first_token_time for o in outputs]
    last = [o.metrics.last_token_time for o in outputs]
    ttft = [o.metrics.first_token_time - o.metrics.arrival_time for o in outputs]
    if benchmark == "latency":
        decode_time = sum(b - a for a, b in zip(first, last, strict=True))
        prefill_time = sum(ttft)
    else:
        decode_time = max(last) - min(first)
        prefill_time = max(first) - min(o.metrics.arrival_time for o in outputs)
    num_decoded = num_prompts * (output_len - 1)
    return BenchResult(
        benchmark=benchmark,
        model=llm.config.model,
        kernels=llm.ready.kernels,
        dtype=llm.ready.dtype,
        num_prompts=num_prompts,
        input_len=input_len,
        output_len=output_len,
        elapsed_seconds=elapsed,
        ttft_seconds=statistics.median(ttft),
        tpot_seconds=_median_tpot(first, last, output_len),
        decode_tokens_per_second=num_decoded / decode_time if decode_time > 0 else 0.0,
        output_tokens_per_second=num_prompts * output_len / elapsed,
        prefill_tokens_per_second=num_prompts * input_len / prefill_time,
        peak_rss_bytes=peak_rss_bytes(),
    )


def _median_tpot(first: list[float], last: list[float], output_len: int) -> float:
    if output_len < 2:
        return 0.0
    return statistics.median((b - a) / (output_len - 1) for a, b in zip(first, last, strict=True))


def peak_rss_bytes() -> int:
    """Peak resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
