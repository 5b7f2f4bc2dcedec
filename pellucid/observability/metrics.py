"""Prometheus metrics under the names that dashboards, autoscalers and benchmark tools already read: vLLM's. What vLLM
does not have is called pellucid:.

What an engine did is read from its events and statistics; what a caller experienced (latencies, how its requests
ended) is told by the front door, since only there a caller's wait can be seen. Values are plain numbers, kept in a
registry of their own: nothing is global, and an observation costs a bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from pellucid.observability.events import Event, StepCompleted

if TYPE_CHECKING:  # types only: this room is below all others
    from pellucid.core.messages import EngineReady, SchedulerStats
    from pellucid.frontend.outputs import RequestMetrics

TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
TOKEN_LATENCY_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
LATENCY_BUCKETS = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
TOKEN_COUNT_BUCKETS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES_BUCKETS = (1, 2, 5, 10, 20)

LabelledValues = Mapping[tuple[tuple[str, str], ...], float]  # label names and values to a sample

_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "time_to_first_token_seconds": ("From arrival to the first token.", TTFT_BUCKETS),
    "inter_token_latency_seconds": ("Between one token and the next of a request.", TOKEN_LATENCY_BUCKETS),
    "request_time_per_output_token_seconds": ("Mean time between the tokens of a request.", TOKEN_LATENCY_BUCKETS),
    "e2e_request_latency_seconds": ("From arrival to the end.", LATENCY_BUCKETS),
    "request_queue_time_seconds": ("From arrival to the first step.", LATENCY_BUCKETS),
    "request_inference_time_seconds": ("From the first step to the last token.", LATENCY_BUCKETS),
    "request_prefill_time_seconds": ("From the first step to the first token.", LATENCY_BUCKETS),
    "request_decode_time_seconds": ("From the first token to the last.", LATENCY_BUCKETS),
    "request_prompt_tokens": ("Tokens in the prompt of a request.", TOKEN_COUNT_BUCKETS),
    "request_generation_tokens": ("Tokens generated for a request.", TOKEN_COUNT_BUCKETS),
    "iteration_tokens_total": ("Tokens computed in a step.", ITERATION_BUCKETS),
    "request_params_n": ("Choices asked for.", CHOICES_BUCKETS),
    "request_params_max_tokens": ("The max_tokens of a request, as clamped.", TOKEN_COUNT_BUCKETS),
}

FINISHED_REASONS = ("stop", "length", "abort", "error")
REJECTION_REASONS = ("queue_full", "unavailable", "context_length")


class Histogram:
    """counts[i]: observations at most bounds[i] and above bounds[i - 1]; the last one is for those above all."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulated, as Prometheus wants them."""
        names = [*(floatToGoString(bound) for bound in self.bounds), "+Inf"]
        total = 0
        result: list[tuple[str, float]] = []
        for name, count in zip(names, self.counts, strict=True):
            total += count
            result.append((name, total))
        return result


class Metrics(Collector):
    """Everything /metrics tells of one engine. count_waiting: asked whenever they are read."""

    def __init__(self, model_name: str, engine: str = "0") -> None:
        self.labels = {"model_name": model_name, "engine": engine}
        self.stats: SchedulerStats | None = None  # before the first step
        self.cache_config: Mapping[str, str] = {}
        self.count_waiting: Callable[[], int] = lambda: self.stats.num_waiting if self.stats else 0
        self.histograms = {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self.inter_token_latency = self.histograms["inter_token_latency_seconds"]
        self.num_prompt_tokens = 0
        self.num_cached_prompt_tokens = 0
        self.num_generation_tokens = 0
        self.num_finished = dict.fromkeys(FINISHED_REASONS, 0)
        self.num_rejected = dict.fromkeys(REJECTION_REASONS, 0)
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    # what the engine tells ------------------------------------------------------------------------------------------

    def on_events(self, events: Sequence[Event], stats: SchedulerStats) -> None:
        self.stats = stats
        for event in events:
            if isinstance(event, StepCompleted):
                self.histograms["iteration_tokens_total"].observe(event.num_tokens)

    # what the front door tells --------------------------------------------------------------------------------------

    def on_submitted(self, num_prompt_tokens: int, num_choices: int, max_tokens: int | None) -> None:
        self.num_prompt_tokens += num_prompt_tokens
        self.histograms["request_prompt_tokens"].observe(num_prompt_tokens)
        self.histograms["request_params_n"].observe(num_choices)
        if max_tokens is not None:
            self.histograms["request_params_max_tokens"].observe(max_tokens)

    def on_tokens(self, num_tokens: int, since_last_s: float | None) -> None:
        """since_last_s: since the choice's previous tokens came; None for its first ones, or if nobody watched."""
        self.num_generation_tokens += num_tokens
        if since_last_s is not None and num_tokens:
            self.inter_token_latency.observe(since_last_s / num_tokens, num_tokens)

    def on_choice_finished(self, reason: str) -> None:
        self.num_finished[reason] += 1

    def on_finished(
        self, num_choices: int, num_generation_tokens: int, num_cached_tokens: int, times: RequestMetrics
    ) -> None:
        """A request came to its end by itself. num_generation_tokens: of all choices together."""
        self.num_cached_prompt_tokens += num_cached_tokens
        observe = self._observe_span
        self.histograms["request_generation_tokens"].observe(num_generation_tokens)
        observe("time_to_first_token_seconds", times.arrival_time, times.first_token_time)
        observe("e2e_request_latency_seconds", times.arrival_time, times.finished_time)
        observe("request_queue_time_seconds", times.arrival_time, times.first_scheduled_time)
        observe("request_inference_time_seconds", times.first_scheduled_time, times.last_token_time)
        observe("request_prefill_time_seconds", times.first_scheduled_time, times.first_token_time)
        observe("request_decode_time_seconds", times.first_token_time, times.last_token_time)
        num_gaps = num_generation_tokens / num_choices - 1
        if num_gaps > 0 and times.first_token_time:
            mean = max(times.last_token_time - times.first_token_time, 0.0) / num_gaps
            self.histograms["request_time_per_output_token_seconds"].observe(mean)

    def on_rejected(self, reason: str) -> None:
        self.num_rejected[reason] += 1

    def _observe_span(self, name: str, start: float, end: float) -> None:
        if start and end:  # 0.0: has not happened
            self.histograms[name].observe(max(end - start, 0.0))

    # what a scraper gets --------------------------------------------------------------------------------------------

    def expose(self, accept: str) -> tuple[bytes, str]:
        """The text for a scraper that accepts this, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]:
        running = preemptions = queries = hits = forced = 0
        used = 0.0
        if (stats := self.stats) is not None:  # its counters go on over engines that were replaced
            running, preemptions = stats.num_running, stats.num_preemptions
            queries, hits, forced = stats.prefix_cache_queries, stats.prefix_cache_hits, stats.num_forced_tokens
            used = (stats.num_blocks - stats.num_free_blocks) / stats.num_blocks if stats.num_blocks else 0.0
        yield self._gauge("num_requests_running", "Requests in the running batch.", running)
        yield self._gauge("num_requests_waiting", "Requests that wait to run.", self.count_waiting())
        yield self._gauge("kv_cache_usage_perc", "Share of the KV blocks in use; 1 is all of them.", used)
        yield self._gauge("cache_config_info", "The KV cache, in the labels.", 1, self.cache_config)

        count = self._counter
        yield count("prompt_tokens", "Tokens of all prompts.", {(): self.num_prompt_tokens})
        yield count("prompt_tokens_cached", "Those found in the prefix cache.", {(): self.num_cached_prompt_tokens})
        yield count("generation_tokens", "Tokens generated.", {(): self.num_generation_tokens})
        help_text = "Of them, those that a constraint left no choice about and that cost no step of their own."
        yield count("forced_tokens", help_text, {(): forced}, prefix="pellucid")
        yield count("num_preemptions", "Preemptions.", {(): preemptions})
        yield count("prefix_cache_queries", "Tokens looked up in the prefix cache.", {(): queries})
        yield count("prefix_cache_hits", "Tokens found there.", {(): hits})
        finished: LabelledValues = {
            (("finished_reason", reason),): number for reason, number in self.num_finished.items()
        }
        yield count("request_success", "Choices that ended, by why.", finished)
        rejected: LabelledValues = {(("reason", reason),): number for reason, number in self.num_rejected.items()}
        yield count("admission_rejections", "Requests refused, by why.", rejected)

        for name, histogram in self.histograms.items():
            family = HistogramMetricFamily(f"vllm:{name}", _HISTOGRAMS[name][0], labels=list(self.labels))
            family.add_metric(list(self.labels.values()), buckets=histogram.buckets(), sum_value=histogram.sum)
            yield family

    def _gauge(
        self, name: str, help_text: str, value: float, more: Mapping[str, str] | None = None
    ) -> GaugeMetricFamily:
        labels = {**self.labels, **(more or {})}
        family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def _counter(self, name: str, help_text: str, values: LabelledValues, prefix: str = "vllm") -> CounterMetricFamily:
        extra = [key for key, _ in next(iter(values), ())]
        family = CounterMetricFamily(f"{prefix}:{name}", help_text, labels=[*self.labels, *extra])
        for labels, value in values.items():
            family.add_metric([*self.labels.values(), *(label for _, label in labels)], value)
        return family


def cache_config_labels(ready: EngineReady) -> dict[str, str]:
    """The labels of vllm:cache_config_info."""
    return {
        "block_size": str(ready.block_size),
        "num_gpu_blocks": str(ready.num_blocks),
        "cache_dtype": ready.details.get("kv_cache_dtype", "auto"),
        "enable_prefix_caching": ready.details.get("enable_prefix_caching", "True"),
    }
