"""OpenTelemetry: a span for each request, as the semantic conventions for generative AI name things. Extra [otel].

A span is made when its request has ended, out of what is known then, so that nothing is done for it on the way. It is a
child of the caller's span where the request brought a W3C `traceparent`. Prompts and answers are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # types only: this room is below all others
    from pellucid.frontend.outputs import RequestMetrics
    from pellucid.sampling.params import SamplingParams

EXPORT_TIMEOUT_S = 5.0
_W3C_HEADERS = (b"traceparent", b"tracestate")


@dataclass
class RequestSpan:
    """What a span says. Times are seconds of time.time(). error_type: in a word; "" where all went well."""

    operation: str  # "chat", "text_completion" or "embeddings"
    request_id: str
    start: float
    end: float
    params: SamplingParams | None = None
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    finish_reasons: Sequence[str] = ()
    error_type: str = ""
    error: str = ""
    times: Sequence[RequestMetrics] = field(default_factory=list)  # of each prompt


class SpanExporter:
    """endpoint: where to POST OTLP protobuf, such as http://collector:4318/v1/traces.

    Spans leave on a thread of their own; where the collector does not answer they are dropped, and it is logged.
    Raises ValueError where the extra is not installed.
    """

    def __init__(self, endpoint: str, model_name: str, version: str, host: str, port: int) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ValueError(
                "--otlp-traces-endpoint needs OpenTelemetry; install it with: pip install 'pellucid[otel]'"
            ) from error
        self._trace = trace
        self._model_name = model_name
        self._server: dict[str, Any] = {"server.address": host, "server.port": port}
        self._propagator = TraceContextTextMapPropagator()
        resource = Resource.create({"service.name": "pellucid", "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
        self._tracer = self._provider.get_tracer("pellucid", version)

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Any:
        """The context that a request came with, for `export`. headers: as ASGI has them."""
        carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in _W3C_HEADERS}
        return self._propagator.extract(carrier) if carrier else None

    def export(self, span: RequestSpan, caller: Any) -> None:
        """Returns at once."""
        made = self._tracer.start_span(
            f"{span.operation} {self._model_name}",
            context=caller,
            kind=self._trace.SpanKind.SERVER,
            start_time=_ns(span.start),
            attributes={**self._attributes(span), **self._server},
        )
        if span.error_type:
            made.set_attribute("error.type", span.error_type)
            made.set_status(self._trace.StatusCode.ERROR, span.error)
        context = self._trace.set_span_in_context(made)
        for times in span.times:
            self._export_phases(times, context)
        made.end(_ns(span.end))

    def close(self) -> None:
        """Sends what is left; waits no longer than EXPORT_TIMEOUT_S for each batch."""
        self._provider.shutdown()

    def _export_phases(self, times: RequestMetrics, context: Any) -> None:
        moments = (times.arrival_time, times.first_scheduled_time, times.first_token_time, times.last_token_time)
        for name, begin, end in zip(("queue", "prefill", "decode"), moments, moments[1:], strict=False):
            if begin and end:  # 0.0: has not happened
                attributes = {"pellucid.num_preemptions": times.num_preemptions} if name == "decode" else None
                phase = self._tracer.start_span(name, context, attributes=attributes, start_time=_ns(begin))
                phase.end(_ns(max(begin, end)))

    def _attributes(self, span: RequestSpan) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": span.operation,
            "gen_ai.provider.name": "pellucid",
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.model": self._model_name,
            "gen_ai.response.id": span.request_id,
            "gen_ai.usage.input_tokens": span.num_input_tokens,
            "gen_ai.usage.output_tokens": span.num_output_tokens,
            "gen_ai.usage.cache_read.input_tokens": span.num_cached_tokens,
        }
        if span.finish_reasons:
            attributes["gen_ai.response.finish_reasons"] = list(span.finish_reasons)
        if (params := span.params) is not None:
            asked = {
                "max_tokens": params.max_tokens,
                "temperature": params.temperature,
                "top_p": params.top_p,
                "top_k": params.top_k or None,
                "seed": params.seed,
                "frequency_penalty": params.frequency_penalty or None,
                "presence_penalty": params.presence_penalty or None,
                "choice.count": params.n if params.n > 1 else None,
            }
            attributes |= {f"gen_ai.request.{name}": value for name, value in asked.items() if value is not None}
        return attributes


def _ns(time_s: float) -> int:
    return int(time_s * 1e9)
