"""The curves of a comparison: the compared score by rounds, megabytes or seconds, a panel for each view and a line for each row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas
from matplotlib import rc_context

from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import ELAPSED
from flcog.commands.compare.runs import OUT_REMEDY
from flcog.commands.compare.statistics import estimate
from flcog.commands.curves import Panel, figure_of
from flcog.core.files import write_figure

By = Literal["rounds", "bytes", "seconds"]

AXES: dict[By, tuple[str, Sequence[str], float]] = {
    "rounds": ("Round", ["round"], 1),
    "bytes": ("Megabytes sent up and down", ["comm/total_bytes"], 1e-6),
    "seconds": ("Seconds", ["time/simulated", ELAPSED], 1),
}
"""The text of the horizontal axis, the columns that it may show, of which the first that is known counts, and their scale."""


def draw_curves(filled: ResultTable, out: Path, by: By) -> list[Path]:
    """Draw ``curves.png`` and ``curves.pdf``; no files if no run has been evaluated yet.

    Lines are means over seeds, and bands are 95 % intervals, from three seeds on.
    """
    # Views that differ only in the last round that counts share a panel: the last one's.
    last = {(view.column, view.metric): name for name, view in filled.table.views.items()}
    panels = []
    for view in last.values():
        metric = filled.metric(view).replace("test/", "test ")
        label = metric[:1].upper() + metric[1:] + " (%)" * filled.percent[view]
        if lines := curves(filled, view, by):
            panels.append(Panel(view, AXES[by][0], label, lines))
    if not panels:
        return []
    paths = [out / "curves.png", out / "curves.pdf"]
    with rc_context({"pdf.fonttype": 42}):  # fonts that publishers accept
        figure = figure_of(panels, list(filled.table.rows))
        for path in paths:
            write_figure(path, figure, dpi=200, remedy=OUT_REMEDY)
    return paths


def curves(filled: ResultTable, view: str, by: By) -> dict[str, pandas.DataFrame]:
    """For each row its curve, with a point for each round that any seed evaluated."""
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
            half = np.array(
                [one.half if one.count > 2 else np.nan for one in (estimate(part.score.tolist()) for _, part in rounds)]
            )
            mean = rounds.score.mean()
            found[row] = pandas.DataFrame({"x": rounds.x.mean(), "mean": mean, "low": mean - half, "high": mean + half})
    return found
