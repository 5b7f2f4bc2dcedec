"""`pellucid bench`: measure the engine, the scheduler, and the block accounting."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pellucid.cli.errors import clean_errors
from pellucid.cli.options import with_engine_options
from pellucid.config import EngineConfig

app = typer.Typer(
    help="Measure latency, throughput, prefill, the scheduler, and block accounting.", no_args_is_help=True
)

NumPrompts = Annotated[int, typer.Option(min=1, help="How many random prompts.")]
InputLen = Annotated[int, typer.Option(min=1, help="Tokens in each prompt.")]
OutputLen = Annotated[int, typer.Option(min=1, help="Tokens generated for each; EOS is ignored.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@app.command(epilog="Example: pellucid bench latency --input-len 128 --output-len 64 --json")
@with_engine_options(positional_model=False)
def latency(
    *,
    config: EngineConfig,
    num_prompts: NumPrompts = 3,
    input_len: InputLen = 128,
    output_len: OutputLen = 64,
    as_json: AsJson = False,
) -> None:
    """One request at a time: time to first token and time per output token."""
    _run("latency", config, num_prompts, input_len, output_len, as_json)


@app.command(epilog="Example: pellucid bench throughput --num-prompts 32 --quantization int8 --model Qwen/Qwen3-0.6B")
@with_engine_options(positional_model=False)
def throughput(
    *,
    config: EngineConfig,
    num_prompts: NumPrompts = 32,
    input_len: InputLen = 128,
    output_len: OutputLen = 64,
    as_json: AsJson = False,
) -> None:
    """All requests at once: output tokens a second, prefill included."""
    _run("throughput", config, num_prompts, input_len, output_len, as_json)


@app.command(epilog="Example: pellucid bench prefill --input-len 2048")
@with_engine_options(positional_model=False)
def prefill(
    *,
    config: EngineConfig,
    num_prompts: NumPrompts = 1,
    input_len: InputLen = 2048,
    output_len: OutputLen = 1,
    as_json: AsJson = False,
) -> None:
    """Long prompts: prompt tokens a second."""
    _run("prefill", config, num_prompts, input_len, output_len, as_json)


@app.command(epilog="Example: pellucid bench blocks --block-size 16 --total-blocks 64 --request-tokens 9,17,33,5,41,12")
def blocks(
    block_size: Annotated[int, typer.Option(min=1)] = 16,
    total_blocks: Annotated[int, typer.Option(min=1)] = 64,
    request_tokens: Annotated[str, typer.Option(help="Lengths of the requests, comma-separated.")] = "9,17,33,5,41,12",
) -> None:
    """What paging the KV cache saves over one contiguous slot per request, as JSON."""
    from pellucid.bench.blocks import block_report

    with clean_errors():
        try:
            lengths = [int(part) for part in request_tokens.split(",")]
        except ValueError:
            raise ValueError(f"--request-tokens {request_tokens!r}: write lengths like 9,17,33") from None
        print(json.dumps(block_report(lengths, block_size, total_blocks), indent=2, sort_keys=True))


@app.command(epilog="Example: pellucid bench scheduler --num-running 256")
def scheduler(
    num_running: Annotated[int, typer.Option(min=1, help="Requests decoding together.")] = 256,
    num_steps: Annotated[int, typer.Option(min=1, help="Steps measured.")] = 200,
    as_json: AsJson = False,
) -> None:
    """What one step of the scheduler costs, without a model."""
    from pellucid.bench.scheduler import scheduler_report

    with clean_errors():
        _print(scheduler_report(num_running, num_steps), as_json)


def _run(
    benchmark: str, config: EngineConfig, num_prompts: int, input_len: int, output_len: int, as_json: bool
) -> None:
    with clean_errors():
        from pellucid.bench.engine import run_benchmark
        from pellucid.llm import LLM

        result = run_benchmark(LLM.from_config(config), benchmark, num_prompts, input_len, output_len)
        _print(result.as_dict(), as_json)


def _print(values: dict[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(values))
        return
    width = max(map(len, values))
    for key, value in values.items():
        print(f"{key:<{width}}  {value:.6g}" if isinstance(value, float) else f"{key:<{width}}  {value}")
