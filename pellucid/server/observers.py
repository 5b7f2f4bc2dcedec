"""Those who read the engine's events for as long as the server runs."""

from __future__ import annotations

from collections.abc import Sequence

from pellucid import __version__
from pellucid.core.messages import SchedulerStats
from pellucid.observability.event_log import INFO_KINDS, event_printer
from pellucid.observability.events import (
    EngineDied,
    EngineStarted,
    Event,
    RequestRefused,
    RequestReplayed,
    RequestSubmitted,
)
from pellucid.observability.history import History
from pellucid.observability.metrics import Metrics
from pellucid.observability.otel import SpanExporter
from pellucid.observability.trace_file import TraceFile
from pellucid.server.options import ServerOptions

# The engine's process prints its own events; these happen on this side.
_PRINTED_HERE = frozenset({RequestSubmitted, EngineStarted, EngineDied, RequestReplayed})


class Observers:
    """Whoever makes it calls `close`. Raises OSError where the trace file can't be made, ValueError without [otel].

    port: where the server listens, if the options leave it open.
    """

    def __init__(
        self, options: ServerOptions, metrics: Metrics, log_level: str = "warning", port: int | None = None
    ) -> None:
        self.history = History()
        self.spans: SpanExporter | None = None
        if options.otlp_traces_endpoint:
            model_name, port = metrics.labels["model_name"], port or options.port
            self.spans = SpanExporter(options.otlp_traces_endpoint, model_name, __version__, options.host, port)
        self._metrics = metrics
        self._trace = TraceFile(options.trace_file, options.trace_max_bytes) if options.trace_file else None
        self._print = event_printer() if log_level in ("info", "trace") else None
        self._printed = _PRINTED_HERE if log_level == "trace" else _PRINTED_HERE & INFO_KINDS

    def on_events(self, events: Sequence[Event], stats: SchedulerStats) -> None:
        self._metrics.on_events(events, stats)
        self.history.on_events(events)
        if self._trace is not None:
            self._trace.on_events(events, is_idle=not stats.num_running)
        if self._print is not None:
            for event in events:
                refused_here = isinstance(event, RequestRefused) and event.by == "front door"
                if refused_here or type(event) in self._printed:
                    self._print(event)

    def close(self) -> None:
        if self._trace is not None:
            self._trace.close()
        if self.spans is not None:
            self.spans.close()
