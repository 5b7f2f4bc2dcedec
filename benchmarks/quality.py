"""What a weight or KV format costs: perplexity and KL divergence against bf16 on text that ships with Python.

    python benchmarks/quality.py --model MODEL --tokens 50000 --out docs/quality

MODEL is a checkpoint in bf16 or f32 (a Hugging Face directory or a hub id). Every format computes the same windows of
text, one window after another, so that nothing but two windows' logits is in memory. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch

from pellucid.config import EngineConfig
from pellucid.engine.build import LoadedModel, load_model_parts
from pellucid.frontend.tokenizer import load_tokenizer
from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.loader.resolve import resolve_model

WINDOW = 512
BLOCK_SIZE = 16
# name, weights, KV cache; the first is what the others are compared with
VARIANTS = [
    ("bf16", None, "auto"),
    ("int8", "int8", "auto"),
    ("int4", "int4", "auto"),
    ("bf16, int8 KV", None, "int8"),
    ("int8, int8 KV", "int8", "int8"),
]


@dataclass
class Score:
    """Sums over tokens, in nats."""

    negative_log_likelihood: float = 0.0
    kl: float = 0.0
    same_top: int = 0
    tokens: int = 0

    def add(self, reference: torch.Tensor, own: torch.Tensor, targets: torch.Tensor) -> None:
        """reference, own: log-probabilities [n, vocab]; targets: [n], the tokens that follow."""
        self.negative_log_likelihood -= own.gather(1, targets[:, None]).double().sum().item()
        self.kl += (reference.exp() * (reference - own)).sum(-1).double().sum().item()
        self.same_top += int((reference.argmax(-1) == own.argmax(-1)).sum())
        self.tokens += len(targets)


def windows(tokens: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(tokens) - WINDOW, WINDOW):
        yield tokens[start : start + WINDOW + 1]


def log_probabilities(loaded: LoadedModel, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocab], the window computed as one prompt at the start of the cache."""
    count = len(tokens)
    ids = torch.tensor(tokens, dtype=torch.int32)
    rows = torch.arange(count, dtype=torch.int32)
    blocks = torch.arange(-(-count // BLOCK_SIZE), dtype=torch.int32)[None]
    ends = torch.tensor([0, count], dtype=torch.int32)
    batch = ForwardBatch(ids, rows, ends, ends[1:].clone(), rows.clone(), blocks, rows.clone(), BLOCK_SIZE)
    with torch.inference_mode():
        logits = loaded.model.compute_logits(loaded.model.forward(batch), batch)
    return torch.log_softmax(logits.float(), -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--out", required=True, help="prefix of the files written, e.g. docs/quality")
    args = parser.parse_args()

    text = "\n\n".join(topics[name] for name in sorted(topics))
    tokens = load_tokenizer(resolve_model(args.model)).encode(text, add_special_tokens=False)[: args.tokens + 1]
    models: list[tuple[str, LoadedModel]] = []
    for name, quantization, kv_dtype in VARIANTS:
        print(f"loading {name}", file=sys.stderr, flush=True)
        config = EngineConfig(model=args.model, quantization=quantization, kv_cache_dtype=kv_dtype)
        loaded = load_model_parts(config, lambda _: None)
        loaded.model.allocate_kv_cache(WINDOW // BLOCK_SIZE, BLOCK_SIZE, kv_dtype)
        models.append((name, loaded))

    scores = {name: Score() for name, _ in models}
    for number, window in enumerate(windows(tokens)):
        targets = torch.tensor(window[1:])
        reference = log_probabilities(models[0][1], window[:-1])
        for name, loaded in models:
            own = reference if loaded is models[0][1] else log_probabilities(loaded, window[:-1])
            scores[name].add(reference, own, targets)
        print(f"window {number + 1} of {(len(tokens) - 1) // WINDOW}", file=sys.stderr, flush=True)

    report = table(args.model, scores)
    Path(f"{args.out}.md").write_text(report)
    Path(f"{args.out}.json").write_text(
        json.dumps({name: vars(score) for name, score in scores.items()}, indent=1) + "\n"
    )
    print(report)


def table(model: str, scores: dict[str, Score]) -> str:
    base = next(iter(scores.values()))
    base_perplexity = math.exp(base.negative_log_likelihood / base.tokens)
    lines = [
        f"### {Path(model).name}: {base.tokens:,} tokens of Python's own documentation, windows of {WINDOW}\n",
        "| format | perplexity | change | mean KL (nats) | same most likely token |",
        "|---|---|---|---|---|",
    ]
    for name, score in scores.items():
        perplexity = math.exp(score.negative_log_likelihood / score.tokens)
        change = perplexity / base_perplexity - 1
        lines.append(
            f"| {name} | {perplexity:.3f} | {change:+.2%} | {score.kl / score.tokens:.5f} "
            f"| {score.same_top / score.tokens:.2%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
