"""What others say of these ideas, beside what this machine says: each claim as a ratio measured in this run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pellucid.lessons.ladder import STAGES, Measurement, run_stage
from pellucid.lessons.task import Task
from pellucid.lessons.workbench import Row, Workbench
from pellucid.lessons.workloads import equal_lengths, long_prompts_between_short_ones

ROUNDS = 5
PROMPTS = (11, 17)  # the two prompts of nano-vllm's example


@dataclass(frozen=True)
class Claim:
    """measured: in the unit of `claimed`, or None where the stages it compares were not run. how: what was measured."""

    claim: str
    source: str
    claimed: str
    measured: float | None
    unit: str
    how: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    @property
    def measured_text(self) -> str:
        if self.measured is None:
            return "not measured"
        return f"{self.measured:.0f} %" if self.unit == "%" else f"{self.measured:.2f}{self.unit}"


def measure_claims(bench: Workbench, measured: Mapping[int, Measurement], vocab_size: int) -> list[Claim]:
    """measured: the stages' runs on the common workload, by number. The rest is measured here."""
    batch_of_one, batch_of_eight = (_decode_rate(bench, size, vocab_size) for size in (1, 8))
    whole, chunked = _with_long_prompts(bench, batch_of_one, vocab_size)
    prefill_s, decode_s = _step_times(bench, vocab_size)
    return [
        Claim(
            "continuous batching gives 2-4x the throughput of static batching on mixed lengths",
            "ai-engineering-from-scratch", "2-4x",
            _ratio(measured, 6, 3, "tokens_per_second"), "x",
            f"tokens/s of stage 6 / stage 3, {bench.max_batch} requests at a time",
        ),
        Claim(
            "batch 8 gives 7.8x the tokens/s of batch 1", "nanoLLMServe v0.3 (Qwen3-8B, A100)", "7.8x",
            batch_of_eight / batch_of_one, "x",
            "decode steps of 8 requests / of 1",
        ),
        Claim(
            "paged KV saves ~30 % memory against per-request buffers", "ai-engineering-from-scratch", "30 %",
            _saved_memory(measured), "%",
            "KV held by stage 5 against stage 3, mean over the steps",
        ),
        Claim(
            "chunked prefill halves the P99 time to first token", "ai-engineering-from-scratch", "0.50x",
            chunked.ttft_p99_s / whole.ttft_p99_s, "x",
            "stage 8 / stage 7, short requests arriving between long prompts",
        ),
        Claim(
            "(what chunked prefill is for) the longest pause within an answer", "-", "-",
            chunked.itl_max_s / whole.itl_max_s, "x",
            "the same runs",
        ),
        Claim(
            "decode is ~250x cheaper than a two-prompt prefill step", "nano-vllm (Qwen3-0.6B, GPU)", "250x",
            prefill_s / decode_s, "x",
            f"a step of two prompts of {PROMPTS[0]} and {PROMPTS[1]} tokens / the decode step after it, warm",
        ),
        Claim(
            "a replayed decode step takes 2-3 ms", "nano-vllm (Qwen3-0.6B, CUDA graph)", "2-3 ms",
            1e3 * decode_s, " ms",
            "the decode step of two requests",
        ),
    ]  # fmt: skip


def _ratio(measured: Mapping[int, Measurement], number: int, baseline: int, attribute: str) -> float | None:
    if number not in measured or baseline not in measured:
        return None
    return getattr(measured[number], attribute) / getattr(measured[baseline], attribute)


def _saved_memory(measured: Mapping[int, Measurement]) -> float | None:
    ratio = _ratio(measured, 5, 3, "kv_held")
    return None if ratio is None else 100 * (1 - ratio)


def _decode_rate(bench: Workbench, batch_size: int, vocab_size: int) -> float:
    """Tokens a second of batch_size requests that are decoded together, prompts not counted."""
    tasks = equal_lengths(batch_size, num_prompt_tokens=32, max_tokens=24, vocab_size=vocab_size)
    usual, bench.max_batch = bench.max_batch, batch_size
    _, done = run_stage(bench, *STAGES[6], tasks)
    bench.max_batch = usual
    steps = [b - a for a, b in zip(done[0].token_times, done[0].token_times[1:], strict=False)]
    return batch_size / statistics.median(steps)


def _with_long_prompts(bench: Workbench, tokens_per_second: float, vocab_size: int) -> tuple[Measurement, Measurement]:
    """The same arrivals with whole prompts and with chunks; no more of them than this machine keeps up with.

    tokens_per_second: of one request, which says how fast the machine is.
    """
    tasks = long_prompts_between_short_ones(vocab_size, every_s=12 / tokens_per_second)
    return run_stage(bench, *STAGES[7], tasks)[0], run_stage(bench, *STAGES[8], tasks)[0]


def _step_times(bench: Workbench, vocab_size: int) -> tuple[float, float]:
    """Seconds of a step that computes two prompts, and of the step after it; medians."""
    width = bench.blocks_for(max(PROMPTS) + 1)
    tables = [range(index * width, (index + 1) * width) for index in range(len(PROMPTS))]
    prefill_s, decode_s = [], []
    for seed in range(ROUNDS):
        tasks = [equal_lengths(1, length, 2, vocab_size, seed=seed + length)[0] for length in PROMPTS]
        prefill_s.append(_timed_step(bench, tasks, tables))
        for task in tasks:
            task.num_computed = task.num_prompt_tokens
        decode_s.append(_timed_step(bench, tasks, tables))
    return statistics.median(prefill_s), statistics.median(decode_s)


def _timed_step(bench: Workbench, tasks: list[Task], tables: Sequence[Sequence[int]]) -> float:
    rows = [Row(t, t.num_computed, len(t.token_ids), table) for t, table in zip(tasks, tables, strict=True)]
    begin = time.perf_counter()
    tokens = bench.step(rows)
    elapsed_s = time.perf_counter() - begin
    for task, token in zip(tasks, tokens, strict=True):
        task.append(token)
    return elapsed_s
