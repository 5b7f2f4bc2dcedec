"""The measurements as a picture, with matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pellucid.lessons.ladder import Measurement

FORMATS = (".svg", ".png", ".pdf")


def check_plot_path(path: Path) -> None:
    """Raises ValueError where save_plot could not write, so that it is known before minutes of measuring."""
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot {path}: the name must end in {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--plot {path}: there is no directory {path.absolute().parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install 'pellucid[plot]'") from None


def save_plot(measured: Mapping[int, Measurement], path: Path, title: str) -> None:
    """A row of horizontal bars for each of the report's METRICS."""
    from matplotlib.figure import Figure

    from pellucid.lessons.report import METRICS

    names = [f"{number} {m.name}" if number else m.name for number, m in measured.items()]
    figure = Figure(figsize=(4 * len(METRICS), 0.42 * len(names) + 1.6), layout="constrained")
    figure.suptitle(title)
    for index, (metric, value_of) in enumerate(METRICS.items()):
        axes = figure.add_subplot(1, len(METRICS), index + 1)
        values = [value_of(m) for m in measured.values()]
        drawn = axes.barh(range(len(names)), [value or 0.0 for value in values], color="#4c78a8")
        axes.bar_label(drawn, ["–" if value is None else f"{value:.0f}" for value in values], padding=3, fontsize=8)
        axes.set_title(metric, fontsize=9)
        axes.set_yticks(range(len(names)), names if index == 0 else [""] * len(names), fontsize=9)
        axes.invert_yaxis()
        axes.margins(x=0.18)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
