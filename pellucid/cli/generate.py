"""`pellucid generate`: one prompt, one answer, in this process."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from pellucid.cli.errors import clean_errors
from pellucid.cli.options import with_engine_options
from pellucid.config import EngineConfig
from pellucid.sampling.params import StructuredOutputsParams

EXAMPLES = """Examples:\n
    pellucid generate --prompt "The capital of France is" --max-new-tokens 8 --temperature 0\n
    pellucid generate Qwen/Qwen3-0.6B --prompt "2 + 2 =" --seed 7 --show-stats\n
    pellucid generate --prompt "Is the sky blue? " --choice yes --choice no
"""


@with_engine_options()
def generate(
    *,
    config: EngineConfig,
    prompt: Annotated[str, typer.Option(help="The text to continue; '-' reads standard input.")],
    max_new_tokens: Annotated[int, typer.Option(help="Stop after this many tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling; 1 is off.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample among the k most likely; 0 is off.")] = 0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end-of-text token.")] = False,
    json_schema: Annotated[Path | None, typer.Option(help="A file: the answer is JSON that fits this schema.")] = None,
    regex: Annotated[str | None, typer.Option(help="The whole answer matches it.")] = None,
    choice: Annotated[list[str] | None, typer.Option(help="The answer is this, or another --choice.")] = None,
    show_stats: Annotated[bool, typer.Option("--show-stats", help="Print a line of statistics to stderr.")] = False,
) -> None:
    """Continue a prompt and print the text."""
    from pellucid import LLM, SamplingParams

    with clean_errors():
        constraint = _constraint(json_schema, regex, choice)
        llm = LLM.from_config(config)
        text = sys.stdin.read() if prompt == "-" else prompt
        params = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            max_tokens=max_new_tokens,
            ignore_eos=ignore_eos,
            seed=config.seed,
            structured_outputs=constraint,
        )
        start = time.perf_counter()
        (result,) = llm.generate(text, params, use_tqdm=False)
        elapsed = time.perf_counter() - start
        print(result.outputs[0].text)
        if show_stats:
            num_generated = len(result.outputs[0].token_ids)
            line = stats_line(len(result.prompt_token_ids), num_generated, elapsed, llm.ready.device, llm.ready.dtype)
            print(line, file=sys.stderr)


def _constraint(
    json_schema: Path | None, regex: str | None, choice: list[str] | None
) -> StructuredOutputsParams | None:
    if sum(value is not None for value in (json_schema, regex, choice or None)) > 1:
        raise ValueError("--json-schema, --regex and --choice: give one of them")
    if json_schema is not None:
        return StructuredOutputsParams(json=json_schema.read_text(encoding="utf-8"))
    if regex is not None:
        return StructuredOutputsParams(regex=regex)
    return StructuredOutputsParams(choice=tuple(choice)) if choice else None


def stats_line(prompt_tokens: int, generated_tokens: int, elapsed_seconds: float, device: str, dtype: str) -> str:
    """The statistics of a single generation, `key=value` in a fixed order; tokens_per_second counts output tokens."""
    rate = generated_tokens / elapsed_seconds if elapsed_seconds > 0 else 0.0
    return (
        f"prompt_tokens={prompt_tokens} generated_tokens={generated_tokens} elapsed_seconds={elapsed_seconds:.3f} "
        f"tokens_per_second={rate:.2f} device={device} dtype={dtype}"
    )
