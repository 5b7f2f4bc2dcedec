"""The measurements as a table and as bars for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence

from pellucid.lessons.claims import Claim
from pellucid.lessons.ladder import Measurement

_EIGHTHS = " ▏▎▍▌▋▊▉"

_COLUMNS = (
    *("stage", "tokens/s", "TTFT ms", "P99 ms", "ITL P99 ms", "steps", "computed"),
    *("padding", "again", "KV held", "KV waste"),
)

# what is shown, in words, and the value in the unit of the words
METRICS: dict[str, Callable[[Measurement], float | None]] = {
    "output tokens a second": lambda m: m.tokens_per_second,
    "time to first token, median (ms)": lambda m: 1e3 * m.ttft_median_s,
    "computed for nobody: padding (%)": lambda m: 100 * m.padding,
    "computed again (%)": lambda m: 100 * m.recomputed,
    "KV cache held but not used (%)": lambda m: None if m.kv_waste is None else 100 * m.kv_waste,
}


def table(measured: Mapping[int, Measurement]) -> str:
    """One line a stage. measured: by the stage's number."""
    rows = [_COLUMNS, *(_cells(number, m) for number, m in measured.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *padded]))
    return "\n".join(lines)


def _cells(number: int, m: Measurement) -> tuple[str, ...]:
    return (
        f"{number} {m.name}" if number else m.name,
        f"{m.tokens_per_second:.1f}",
        f"{1e3 * m.ttft_median_s:.0f}",
        f"{1e3 * m.ttft_p99_s:.0f}",
        f"{1e3 * m.itl_p99_s:.0f}",
        str(m.steps),
        str(m.computed_tokens),
        f"{m.padding:.0%}",
        f"{m.recomputed:.0%}",
        f"{m.kv_held:.0f}" if m.kv_held else "-",
        "-" if m.kv_waste is None else f"{m.kv_waste:.0%}",
    )


def bars(measured: Mapping[int, Measurement], width: int = 40) -> str:
    """A group of bars for each of METRICS, drawn with block characters."""
    names = [f"{number} {m.name}" if number else m.name for number, m in measured.items()]
    margin = max(map(len, names))
    groups = []
    for title, value_of in METRICS.items():
        values = [value_of(m) for m in measured.values()]
        longest = max((value for value in values if value is not None), default=0.0) or 1.0
        lines = [title]
        for name, value in zip(names, values, strict=True):
            if value is None:
                lines.append(f"  {name:<{margin}}  -")
            else:
                lines.append(f"  {name:<{margin}}  {_bar(value / longest * width)} {value:.0f}")
        groups.append("\n".join(lines))
    return "\n\n".join(groups)


def _bar(length: float) -> str:
    whole = int(length)
    return ("█" * whole + _EIGHTHS[int((length - whole) * 8)]).rstrip()


def claims_text(claims: Sequence[Claim], width: int = 100) -> str:
    """Each claim with the claimed and the measured value beside each other."""
    indent = " " * 10
    lines = []
    for claim in claims:
        lines.append(f"{claim.claimed:>8}  claimed | measured {claim.measured_text:>10}   {claim.claim}")
        lines += textwrap.wrap(f"{claim.how}; {claim.source}", width, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines)
