"""/metrics: the names, labels and buckets that dashboards read, and numbers that are right."""

from __future__ import annotations

import json

from harness import RunningServer, scripted_server

from pellucid.core.messages import SchedulerStats
from pellucid.frontend.outputs import RequestMetrics
from pellucid.observability.events import StepCompleted
from pellucid.observability.metrics import Metrics

TTFT = ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
ITL = ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80"
LATENCY = ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
HISTOGRAMS = {
    "time_to_first_token_seconds": TTFT,
    "inter_token_latency_seconds": ITL,
    "request_time_per_output_token_seconds": ITL,
    "e2e_request_latency_seconds": LATENCY,
    "request_queue_time_seconds": LATENCY,
    "request_inference_time_seconds": LATENCY,
    "request_prefill_time_seconds": LATENCY,
    "request_decode_time_seconds": LATENCY,
    "request_prompt_tokens": None,
    "request_generation_tokens": None,
    "iteration_tokens_total": None,
    "request_params_n": None,
    "request_params_max_tokens": None,
}
SAMPLES = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "prompt_tokens_cached_total",
    "request_success_total{finished_reason=stop}",
    "request_success_total{finished_reason=length}",
    "request_success_total{finished_reason=abort}",
    "admission_rejections_total{reason=queue_full}",
]


def test_every_name_and_bucket_is_there(scripted: RunningServer) -> None:
    metrics = scripted.metrics()
    for name in SAMPLES:
        assert f"vllm:{name}" in metrics
    for name, buckets in HISTOGRAMS.items():
        found = {key for key in metrics if key.startswith(f"vllm:{name}_bucket")}
        assert found
        if buckets is not None:
            bounds = {float(key.split("le=")[1].rstrip("}")) for key in found}
            assert bounds == {*map(float, buckets.split()), float("inf")}
    config = next(key for key in metrics if key.startswith("vllm:cache_config_info"))
    assert "{block_size=16}" in config
    assert "{num_gpu_blocks=4096}" in config
    text = scripted.client.get("/metrics").text
    assert 'vllm:num_requests_running{engine="0",model_name="m"} 0.0' in text


def num_later_tokens(stream: str) -> int:
    """Tokens of each choice that did not come with its first chunk: a slow reader gets several at once."""
    chunks = [json.loads(line[6:])["choices"] for line in stream.splitlines() if line.startswith("data: {")]
    by_choice: dict[int, list[int]] = {}
    for choice in (choice for choices in chunks for choice in choices):
        if choice["token_ids"]:
            by_choice.setdefault(choice["index"], []).append(len(choice["token_ids"]))
    assert {index: sum(lengths) for index, lengths in by_choice.items()} == {0: 6, 1: 6}
    return sum(sum(lengths[1:]) for lengths in by_choice.values())


def test_requests_are_counted_as_they_were() -> None:
    with scripted_server(script={"step_ms": 20}) as server:
        prompt = "y" * 40 + "\nsay hello"
        body = {"model": "m", "prompt": prompt, "temperature": 0, "n": 2, "max_tokens": 50}
        server.post("/v1/completions", **body).raise_for_status()
        streamed = server.post("/v1/completions", **body, stream=True, return_token_ids=True).raise_for_status()
        server.post("/v1/completions", model="m", prompt="x", max_tokens=7, temperature=0)
        server.post("/v1/completions", model="m", prompt="fail", temperature=0)
        server.wait_idle()
        metrics = server.metrics()

    def value(name: str) -> float:
        return metrics[f"vllm:{name}"]

    assert value("prompt_tokens_total") == 2 * len(prompt) + 1 + 4
    assert value("generation_tokens_total") == 4 * 6 + 7
    assert value("request_success_total{finished_reason=stop}") == 4
    assert value("request_success_total{finished_reason=length}") == 1
    assert value("request_success_total{finished_reason=error}") == 1
    assert value("request_success_total{finished_reason=abort}") == 0
    assert value("prompt_tokens_cached_total") == 48  # the second time, all whole blocks but the last token's
    assert value("prefix_cache_hits_total") >= 48
    assert value("request_prompt_tokens_count") == 4
    assert value("request_params_n_sum") == 2 + 2 + 1 + 1
    assert value("request_params_max_tokens_bucket{le=50.0}") == 4
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time"):
        assert value(f"{name}_seconds_count") == 3  # those that came to their end
    # Of the stream, for nobody watched the others, all tokens but those that came first.
    assert value("inter_token_latency_seconds_count") == num_later_tokens(streamed.text)
    assert value("request_time_per_output_token_seconds_count") == 3
    assert value("iteration_tokens_total_sum") >= len(prompt) + 1 + 4


def test_histograms_are_cumulative_and_times_that_did_not_happen_are_not_observed() -> None:
    metrics = Metrics("m")
    metrics.on_finished(1, 3, 2, RequestMetrics(100.0, 100.2, 100.7, 101.7, 101.75))
    metrics.on_finished(1, 0, 0, RequestMetrics(arrival_time=100.0, finished_time=130.0))
    histograms = metrics.histograms
    assert dict(histograms["request_queue_time_seconds"].buckets())["0.3"] == 1
    assert dict(histograms["e2e_request_latency_seconds"].buckets()) | {"30.0": 2, "20.0": 1, "1.5": 0} == dict(
        histograms["e2e_request_latency_seconds"].buckets()
    )
    assert dict(histograms["time_to_first_token_seconds"].buckets())["+Inf"] == 1
    assert histograms["request_time_per_output_token_seconds"].sum == (101.7 - 100.7) / 2
    assert metrics.num_cached_prompt_tokens == 2


def test_the_engines_events_and_statistics_are_read() -> None:
    metrics = Metrics("m")
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0' in metrics.expose("")[0].decode()
    phases = {"schedule_s": 0.0, "forward_s": 0.0, "sample_s": 0.0, "output_s": 0.0}
    step = StepCompleted(step=1, time=0.0, num_reqs=2, num_tokens=30, num_sampled=2, **phases)
    stats = SchedulerStats(num_running=2, num_waiting=3, num_blocks=10, num_free_blocks=4, num_preemptions=5,
                           num_forced_tokens=6)  # fmt: skip
    metrics.on_events([step], stats)
    text = metrics.expose("")[0].decode()
    for line in ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting", "num_preemptions_total"):
        expected = {"kv": "0.6", "num_requests_r": "2.0", "num_requests_w": "3.0", "num_p": "5.0"}
        value = next(value for start, value in expected.items() if line.startswith(start))
        assert f'vllm:{line}{{engine="0",model_name="m"}} {value}' in text
    assert 'pellucid:forced_tokens_total{engine="0",model_name="m"} 6.0' in text
    assert 'vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 30.0' in text
