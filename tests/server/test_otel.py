"""OpenTelemetry spans as a collector receives them, over OTLP/HTTP from a running server."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from harness import free_port, scripted_server, wait_for

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="the extra [otel] is not installed"
)

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Receives what an OTLP exporter posts to /v1/traces."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                request = trace_service.ExportTraceServiceRequest.FromString(body)
                for of_resource in request.resource_spans:
                    collector.resources.append(attributes_of(of_resource.resource))
                    for scope in of_resource.scope_spans:
                        collector.spans += scope.spans
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(trace_service.ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()


def attributes_of(span: Any) -> dict[str, Any]:
    def value_of(value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [value_of(item) for item in value.array_value.values]
        return getattr(value, kind)

    return {attribute.key: value_of(attribute.value) for attribute in span.attributes}


def test_a_request_is_a_span_of_its_callers_trace(collector: Collector) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "say hello"}], "temperature": 0.5, "seed": 3}
    with scripted_server(otlp_traces_endpoint=collector.url) as server:
        headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
        answer = server.client.post("/v1/chat/completions", json=body, headers=headers).raise_for_status().json()
        unsampled = {"traceparent": f"00-{TRACE_ID[::-1]}-{PARENT_ID}-00"}
        server.client.post("/v1/chat/completions", json=body, headers=unsampled).raise_for_status()
        server.client.post("/v1/chat/completions", json=body, headers={"traceparent": "nonsense"}).raise_for_status()
        server.post("/v1/completions", model="m", prompt=["say a", "say b"], stream=True).raise_for_status()
        wait_for(lambda: len(collector.spans) >= 11, 10, lambda: str([span.name for span in collector.spans]))
    chats = collector.named("chat m")
    assert len(chats) == 2, "the caller's decision not to sample holds"
    (span,) = (span for span in chats if span.trace_id.hex() == TRACE_ID)
    assert span.parent_span_id.hex() == PARENT_ID
    assert span.kind == 2, "SERVER"
    assert attributes_of(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "pellucid",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.id": answer["id"],
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": answer["usage"]["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ["stop"],
        "server.address": "127.0.0.1",
        "server.port": server.port,
    }
    phases = [child for child in collector.spans if child.parent_span_id == span.span_id]
    assert [child.name for child in phases] == ["queue", "prefill", "decode"]
    assert span.start_time_unix_nano <= phases[1].start_time_unix_nano <= phases[2].end_time_unix_nano
    assert phases[2].end_time_unix_nano <= span.end_time_unix_nano
    (other,) = (span for span in chats if span.trace_id.hex() != TRACE_ID)
    assert other.parent_span_id == b""
    (completion,) = collector.named("text_completion m")
    assert attributes_of(completion)["gen_ai.response.finish_reasons"] == ["stop", "stop"]
    assert collector.resources[0]["service.name"] == "pellucid"
    texts = " ".join(str(span) for span in collector.spans)
    assert "hello" not in texts, "no text of anyone"


def test_a_request_that_is_refused_or_left_says_so(collector: Collector) -> None:
    with scripted_server(otlp_traces_endpoint=collector.url) as server:
        assert server.post("/v1/completions", model="m", prompt="x" * 3000).status_code == 400
        with server.client.stream(
            "POST", "/v1/completions", json={"model": "m", "prompt": "x", "stream": True, "max_tokens": 2000}
        ) as r:
            next(r.iter_lines())
        wait_for(lambda: len(collector.named("text_completion m")) == 2, 10)
    refused, left = collector.named("text_completion m")
    assert attributes_of(refused)["error.type"] == "context_length_exceeded"
    assert refused.status.code == 2
    assert attributes_of(left)["error.type"] == "abort"


def test_a_collector_that_is_away_costs_no_request_anything() -> None:
    with scripted_server(otlp_traces_endpoint=f"http://127.0.0.1:{free_port()}/v1/traces") as server:
        assert server.post("/v1/completions", model="m", prompt="say x").status_code == 200


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    command = [sys.executable, "-m", "pellucid", "serve", "--port", "0", "--otlp-traces-endpoint", "localhost:4318"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "http://localhost:4318/v1/traces" in done.stderr
