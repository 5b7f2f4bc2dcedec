"""`pellucid lessons`: the history of LLM serving as eight small programs, to read and to run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pellucid.cli.errors import clean_errors
from pellucid.cli.options import DEFAULT_MODEL
from pellucid.config import EngineConfig

EXAMPLES = """Examples:\n
    pellucid lessons                      the list\n
    pellucid lessons show 3               what static batching is, and what is wrong with it\n
    pellucid lessons run --plot ladder.svg
"""

app = typer.Typer(help="Eight small programs from naive recomputation to chunked prefill, to read and to run.")


@app.callback(invoke_without_command=True)
def list_lessons(context: typer.Context) -> None:
    """List the lessons; `show N` opens one, `run` measures them all."""
    if context.invoked_subcommand is not None:
        return
    from pellucid.lessons.texts import lesson_pages, lesson_summary

    with clean_errors():
        for number in lesson_pages():
            title, summary = lesson_summary(number)
            print(f"{number}  {title:<24} {summary}")
    print("\npellucid lessons show N   read one        pellucid lessons run   measure them all")


@app.command(epilog="Example: pellucid lessons show 5")
def show(number: Annotated[int, typer.Argument(help="Which lesson.")]) -> None:
    """Open a lesson: the problem, the idea, where it lives in the engine, and what is still wrong with it."""
    from pellucid.lessons.texts import for_terminal, lesson_text

    with clean_errors():
        text = for_terminal(lesson_text(number))
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(width=100).print(Markdown(text))


@app.command(epilog=EXAMPLES)
def run(
    model: Annotated[str, typer.Argument(help="A directory, a .gguf file, a hub id, or pypi:PACKAGE.")] = DEFAULT_MODEL,
    num_requests: Annotated[int, typer.Option(min=1, max=1024, help="Requests in the workload.")] = 24,
    max_batch: Annotated[int, typer.Option(min=1, max=256, help="Requests that run together.")] = 4,
    stages: Annotated[str | None, typer.Option(help="Which, comma-separated, e.g. 3,6. Default: all.")] = None,
    claims: Annotated[bool, typer.Option(help="Measure what others claim of these ideas, too.")] = True,
    kernels: Annotated[str, typer.Option(help="auto, cpu (the native ones) or torch (the reference).")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    quantization: Annotated[str, typer.Option(help="int8, int4, or none (as the file has it).")] = "int8",
    num_threads: Annotated[int | None, typer.Option(min=1, help="Default: the physical cores.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw it: FILE.svg, .png or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Run every stage on one workload and compare: speed, first token, padding, memory; a minute or two."""
    from pellucid.lessons.plot import check_plot_path, save_plot

    with clean_errors():
        if plot is not None:
            check_plot_path(plot)
        chosen = _numbers(stages) if stages is not None else None
        from pellucid.lessons.ladder import STAGES
        from pellucid.lessons.session import run_ladder

        config = EngineConfig(
            model=model,
            kernels=kernels,
            dtype=dtype,
            quantization=None if quantization == "none" else quantization,
            num_threads=num_threads,
        )
        result = run_ladder(
            config,
            num_requests=num_requests,
            max_batch=max_batch,
            stages=tuple(STAGES) if chosen is None else chosen,
            with_claims=claims,
            on_stage=lambda stage: print(f"... {stage}", file=sys.stderr, flush=True),
        )
        title = f"{result.model}, {result.kernels}: {num_requests} requests, {max_batch} at a time"
        if plot is not None:
            save_plot(result.measured, plot, title)
    if as_json:
        print(json.dumps(result.as_dict()))
        return
    from pellucid.lessons.report import bars, claims_text, table

    print(f"{title}\n\n{table(result.measured)}\n\n{bars(result.measured)}\n")
    if result.claims:
        print(f"{claims_text(result.claims)}\n")
    print("all gave the same tokens" if result.same_tokens else "THE STAGES GAVE DIFFERENT TOKENS")
    if not result.same_tokens:
        raise typer.Exit(1)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--stages {text!r}: write numbers like 3,6") from None
