"""The curves of a comparison: the compared score by rounds, megabytes or seconds, a panel for each view and a line for each row."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import ELAPSED
from flcog.commands.compare.runs import OUT_REMEDY
from flcog.commands.compare.statistics import estimate
from flcog.core.files import write_figure

By = Literal["rounds", "bytes", "seconds"]
BY: tuple[By, ...] = get_args(By)

AXES: dict[By, tuple[str, Sequence[str], float]] = {
    "rounds": ("Round", ["round"], 1),
    "bytes": ("Megabytes sent up and down", ["comm/total_bytes"], 1e-6),
    "seconds": ("Seconds", ["time/simulated", ELAPSED], 1),
}
"""The text of the horizontal axis, the columns that it may show, of which the first that is known counts, and their scale."""

COLOURS = ("#1f5f99", "#d98032", "#3a8f5c", "#a23b52", "#7a5ea8", "#8a6d3b", "#4aa3b5", "#6b6b6b")
LOOKS = [(colour, style) for style, colour in product(("-", "--", ":", "-."), COLOURS)]
PANELS_A_LINE = 3


def draw_curves(filled: ResultTable, out: Path, by: By) -> list[Path]:
    """Draw ``curves.png`` and ``curves.pdf``; no files if no run has been evaluated yet.

    Lines are means over seeds, and bands are 95 % intervals, from three seeds on.
    """
    # Views that differ only in the last round that counts share a panel: the last one's.
    last = {(view.column, view.metric): name for name, view in filled.table.views.items()}
    panels = {view: lines for view in last.values() if (lines := curves(filled, view, by))}
    if not panels:
        return []
    columns = min(len(panels), PANELS_A_LINE)
    height = -(-len(panels) // columns)
    with rc_context({"pdf.fonttype": 42}):  # fonts that publishers accept
        figure = Figure(figsize=(2.0 + 3.6 * columns, 0.6 + 2.8 * height), layout="constrained")
        places = figure.subplots(height, columns, squeeze=False).flatten()
        for axes in places[len(panels) :]:
            axes.remove()
        for axes, (view, lines) in zip(places, panels.items(), strict=False):
            _draw(axes, lines, list(filled.table.rows))
            metric = filled.metric(view).replace("test/", "test ")
            axes.set(title=view, xlabel=AXES[by][0], ylabel=metric[:1].upper() + metric[1:] + " (%)" * filled.percent[view])
        shown = {label: line for axes in places for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(shown.values(), shown.keys(), loc="outside right upper", fontsize=8, frameon=False)
        paths = [out / "curves.png", out / "curves.pdf"]
        for path in paths:
            write_figure(path, figure, dpi=200, remedy=OUT_REMEDY)
    return paths


def curves(filled: ResultTable, view: str, by: By) -> dict[str, pandas.DataFrame]:
    """For each row its curve: the columns ``x``, ``mean`` and ``half``, a line for each round that any seed evaluated."""
    metric, (_, names, scale) = filled.metric(view), AXES[by]
    found = {}
    for row in filled.table.rows:
        points = [
            (line["round"], x * scale, line[metric] * (100 if filled.percent[view] else 1))
            for run in filled.of(row, view).itertuples()
            for line in run.history
            if metric in line and (x := next((line[name] for name in names if name in line), None)) is not None
        ]
        rounds = pandas.DataFrame(points, columns=["round", "x", "score"]).groupby("round")
        if points:
            halves = [one.half if one.count > 2 else np.nan for one in (estimate(part.score.tolist()) for _, part in rounds)]
            found[row] = pandas.DataFrame({"x": rounds.x.mean(), "mean": rounds.score.mean(), "half": halves})
    return found


def _draw(axes: Axes, lines: dict[str, pandas.DataFrame], rows: Sequence[str]) -> None:
    for row, line in lines.items():
        colour, style = LOOKS[rows.index(row) % len(LOOKS)]
        axes.plot(line.x, line["mean"], style, color=colour, linewidth=1.3, label=row, marker="o" if len(line) == 1 else None)
    limits = axes.get_ylim()  # the bands of three seeds may be wide: they are cut off
    for row, line in lines.items():
        colour, _ = LOOKS[rows.index(row) % len(LOOKS)]
        axes.fill_between(line.x, line["mean"] - line.half, line["mean"] + line.half, color=colour, alpha=0.12, linewidth=0)
    axes.set_ylim(limits)
    axes.grid(color="#e6e6e6", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
