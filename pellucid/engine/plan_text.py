"""The table of `pellucid plan` as text."""

from __future__ import annotations

from collections.abc import Sequence

from pellucid.core.kv_budget import format_bytes
from pellucid.engine.plan import BATCHES, PlanRow
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.model_files import ModelFiles

_CONTEXTS = (1024, 4096, 16384)


def default_contexts(files: ModelFiles) -> list[int]:
    """1K, 4K and 16K tokens, as far as the model goes, and all it can."""
    longest = read_model_config(files).max_position_embeddings
    return [*(context for context in _CONTEXTS if context < longest), longest]


def table_text(rows: Sequence[PlanRow], why_no_speeds: str = "") -> str:
    """A line for each format and context; speeds only where they were predicted, else why they were not."""
    measured = any(row.decode is not None for row in rows)
    speeds = (*(f"decode x{size}" for size in BATCHES), "prefill") if measured else ()
    cells = [("format", "weights", "context", "KV/request", "requests", *speeds)]
    for row in rows:
        predicted = () if row.decode is None or row.prefill is None else (*row.decode, row.prefill)
        cells.append(
            (
                row.format,
                format_bytes(row.weight_bytes),
                str(row.context),
                format_bytes(row.request_bytes),
                str(row.num_requests),
                *(f"{speed:.0f}" for speed in predicted),
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    note = "requests: of that length, that fit the KV pool at once."
    if measured:
        note += " decode, prefill: tokens a second, predicted for this machine."
    elif why_no_speeds:
        note += f"\nno speeds are predicted: {why_no_speeds}."
    return "\n".join([*lines, note])
