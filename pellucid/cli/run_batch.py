"""`pellucid run-batch`: a file of requests, answered as fast as the engine can, without a server to look after."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pellucid.cli.errors import clean_errors
from pellucid.cli.options import with_engine_options
from pellucid.config import EngineConfig

EXAMPLES = """Examples:\n
    pellucid run-batch -i requests.jsonl -o results.jsonl\n
    pellucid run-batch -i requests.jsonl -o results.jsonl Qwen/Qwen3-0.6B --max-num-seqs 64
"""


@with_engine_options()
def run_batch(
    *,
    config: EngineConfig,
    input_file: Annotated[
        Path,
        typer.Option("--input-file", "-i", help="Requests in OpenAI's batch format, one a line.", exists=True,
                     dir_okay=False),
    ],
    output_file: Annotated[
        Path,
        typer.Option("--output-file", "-o", help="Results, one a line, in the order they come; where it has some, "
                                                 "the rest is done.", dir_okay=False),
    ],
    served_model_name: Annotated[str | None, typer.Option(help="The name that requests call the model by.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Lines that are worked on together.")] = 512,
) -> None:  # fmt: skip
    """Answer a file of requests. A run that was stopped, however hard, goes on when it is started again."""
    import asyncio

    from pellucid.frontend.terminal import progress_bar
    from pellucid.server.batch import run_batch as run
    from pellucid.server.terminal import ProgressLine

    with clean_errors(), ProgressLine(sys.stderr) as line:
        total, num_new, num_refused = asyncio.run(
            run(
                config,
                input_file,
                output_file,
                concurrency=concurrency,
                progress=lambda num_lines: progress_bar(True, num_lines, "lines"),
                show=line.show,
            )
        )
        refused = f"; {num_refused} of these have an error for an answer" if num_refused else ""
        print(f"{total} lines are in {output_file}, {num_new} of them from this run{refused}", file=sys.stderr)
