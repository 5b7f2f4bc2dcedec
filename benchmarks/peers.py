"""This product and its peers on the same machine in the same run: medians of paired rounds, as ratios.

Every engine lives in an environment of its own and answers one workload at a time (peer_workers/protocol.py), all
taking turns, so that a machine that slows down slows them all. Give what you have; the rest is left out of the table:

    python benchmarks/peers.py --model smollm2 \\
        --hf-dir models/SmolLM2-135M-Instruct \\
        --llama-python envs/llama/bin/python \\
        --gguf-bf16 smollm2-BF16.gguf --gguf-q8 smollm2-Q8_0.gguf --gguf-q4 smollm2-Q4_0.gguf \\
        --openvino-python envs/openvino/bin/python --openvino-dir models/ov-int8-SmolLM2-135M-Instruct \\
        --vllm-python envs/vllm/bin/python --rounds 5 --out docs/performance

Writes OUT-MODEL.json (every measurement), OUT-MODEL.md (the table) and OUT-MODEL.svg (the plot), anew after each
metric. Where they are there already, this run adds its metrics or replaces them: a sitting need not measure all.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

Results = dict[str, dict[str, list[float]]]  # metric, engine, one value a round
WORKERS = Path(__file__).parent / "peer_workers"
PROMPT, OUTPUT, BATCH, LONG, SHARED, OWN = 128, 64, 32, 2048, 1024, 32


class Engine:
    """A worker process; `seconds` is the wall time it reports for one batch of prompts."""

    def __init__(self, name: str, python: str, script: str, *arguments: str) -> None:
        self.name = name
        command = [python, str(WORKERS / script), *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.vocab_size = int(self._read()["vocab_size"])

    def seconds(self, prompts: list[list[int]], output_len: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "output_len": output_len}) + "\n")
        self._process.stdin.flush()
        return float(self._read()["seconds"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{self.name} ended with exit code {self._process.wait()}; run its worker by hand to see why"
            )
        return json.loads(line)


class Prompts:
    """Fresh random prompts for every call, so that no prefix cache ever helps unless the workload is about it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def tokens(self, length: int) -> list[int]:
        return [self._random.randrange(10, 40000) for _ in range(length)]

    def batch(self, count: int, length: int) -> list[list[int]]:
        return [self.tokens(length) for _ in range(count)]


@dataclass(frozen=True)
class Metric:
    name: str
    unit: str
    higher_is_better: bool


METRICS = [
    Metric("ttft_128", "ms", False),
    Metric("decode_b1", "tok/s", True),
    Metric("decode_b32", "tok/s", True),
    Metric("total_b32", "tok/s", True),
    Metric("prefill_2048", "tok/s", True),
    Metric("shared_prefix", "s", False),
]


def measure(engine: Engine, metric: str, prompts: Prompts) -> float:
    """One measurement of one metric. Decode speed is what remains when the same batch's first token is subtracted."""
    if metric == "ttft_128":
        return engine.seconds(prompts.batch(1, PROMPT), 1) * 1e3
    if metric in ("decode_b1", "decode_b32"):
        count = 1 if metric == "decode_b1" else BATCH
        first = engine.seconds(prompts.batch(count, PROMPT), 1)
        return count * (OUTPUT - 1) / (engine.seconds(prompts.batch(count, PROMPT), OUTPUT) - first)
    if metric == "total_b32":
        return BATCH * OUTPUT / engine.seconds(prompts.batch(BATCH, PROMPT), OUTPUT)
    if metric == "prefill_2048":
        return LONG / engine.seconds(prompts.batch(1, LONG), 1)
    if metric == "shared_prefix":
        common = prompts.tokens(SHARED)
        return engine.seconds([common + prompts.tokens(OWN) for _ in range(16)], OWN)
    raise ValueError(metric)


def start_engines(args: argparse.Namespace) -> list[Engine]:
    wanted = [
        *[(f"pellucid {fmt}", sys.executable, "pellucid_worker.py", args.hf_dir, *([fmt] if fmt != "bf16" else []))
          for fmt in args.formats],
        *[(f"llama.cpp {fmt}", args.llama_python, "llama_worker.py", path)
          for fmt, path in (("BF16", args.gguf_bf16), ("Q8_0", args.gguf_q8), ("Q4_0", args.gguf_q4))
          if args.llama_python and path],
    ]  # fmt: skip
    if args.openvino_python and args.openvino_dir:
        wanted.append(("OpenVINO int8", args.openvino_python, "openvino_worker.py", args.openvino_dir))
    if args.vllm_python:
        wanted.append(("vLLM bf16", args.vllm_python, "vllm_worker.py", args.hf_dir))
    engines = []
    for name, python, script, *arguments in wanted:
        print(f"starting {name}", file=sys.stderr, flush=True)
        engines.append(Engine(name, python, script, *arguments))
    return engines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a name for the files and titles")
    parser.add_argument("--hf-dir", required=True)
    parser.add_argument("--formats", nargs="+", default=["bf16", "int8", "int4"])
    parser.add_argument("--llama-python")
    parser.add_argument("--gguf-bf16")
    parser.add_argument("--gguf-q8")
    parser.add_argument("--gguf-q4")
    parser.add_argument("--openvino-python")
    parser.add_argument("--openvino-dir")
    parser.add_argument("--vllm-python")
    parser.add_argument("--metrics", nargs="+", default=[m.name for m in METRICS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", required=True, help="prefix of the files written, e.g. docs/performance")
    args = parser.parse_args()

    engines = start_engines(args)
    prompts = Prompts(seed=0)
    out = f"{args.out}-{args.model}"
    results = known(f"{out}.json")
    for engine in engines:
        engine.seconds(prompts.batch(4, 64), 4)  # warm-up
    for metric in args.metrics:
        values: dict[str, list[float]] = {engine.name: [] for engine in engines}
        for number in range(args.rounds):
            for engine in engines:
                value = measure(engine, metric, prompts)
                values[engine.name].append(value)
                print(f"{metric} round {number + 1} {engine.name}: {value:.4g}", file=sys.stderr, flush=True)
        results[metric] = values
        Path(f"{out}.json").write_text(json.dumps(results, indent=1) + "\n")
        Path(f"{out}.md").write_text(table(args.model, results))
        plot(args.model, results, f"{out}.svg")
    for engine in engines:
        engine.close()
    print(table(args.model, results))


def known(path: str) -> Results:
    """What an earlier run measured: this one adds its metrics, or replaces them."""
    found = json.loads(Path(path).read_text()) if Path(path).exists() else {}
    return {metric.name: found[metric.name] for metric in METRICS if metric.name in found}


def _engines(results: Results) -> list[str]:
    return list(dict.fromkeys(name for values in results.values() for name in values))


def table(model: str, results: Results) -> str:
    names = _engines(results)
    units = {m.name: m.unit for m in METRICS}
    rounds = ", ".join(f"{max(map(len, values.values()))} of {m}" for m, values in results.items())
    lines = [
        f"### {model}\n",
        f"Medians; every engine took its turn in every round. Rounds: {rounds}.\n",
        "| engine | " + " | ".join(f"{m} ({units[m]})" for m in results) + " |",
        "|---|" + "---|" * len(results),
    ]
    for name in names:
        cells = [f"{statistics.median(values[name]):.4g}" if name in values else "–" for values in results.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(model: str, results: Results, path: str) -> None:
    """Bars of every engine's median, one panel a metric."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    metrics = [m for m in METRICS if m.name in results]
    names = _engines(results)
    figure, axes = plt.subplots(1, len(metrics), figsize=(3.2 * len(metrics), 4.2), layout="constrained")
    for axis, metric in zip([axes] if len(metrics) == 1 else axes, metrics, strict=True):
        values = results[metric.name]
        medians = [statistics.median(values[n]) if n in values else 0.0 for n in names]
        colours = ["#0b7285" if n.startswith("pellucid") else "#adb5bd" for n in names]
        bars = axis.barh(names[::-1], medians[::-1], color=colours[::-1])
        axis.bar_label(bars, [f"{value:.4g}" if value else "–" for value in medians[::-1]], fontsize=7, padding=2)
        axis.margins(x=0.18)
        axis.set_title(
            f"{metric.name}\n{metric.unit}, {'higher' if metric.higher_is_better else 'lower'} is better", fontsize=9
        )
        axis.tick_params(labelsize=8)
        if axis is not (axes if len(metrics) == 1 else axes[0]):
            axis.set_yticklabels([])
    figure.suptitle(model)
    figure.savefig(path)


if __name__ == "__main__":
    main()
