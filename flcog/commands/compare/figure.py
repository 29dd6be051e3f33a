"""The curves of a comparison, a panel for each view and a line for each row; and published figures beside ours, a line for each figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas
from matplotlib import rc_context
from matplotlib.figure import Figure

from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import ELAPSED
from flcog.commands.compare.statistics import estimate
from flcog.commands.compare.verdicts import CONTRADICTED, REPRODUCED, UNDECIDED
from flcog.commands.curves import COLOURS, Panel, figure_of
from flcog.core.files import write_figure

By = Literal["rounds", "bytes", "seconds"]

AXES: dict[By, tuple[str, Sequence[str], float]] = {
    "rounds": ("Round", ["round"], 1),
    "bytes": ("Megabytes sent up and down", ["comm/total_bytes"], 1e-6),
    "seconds": ("Seconds", ["time/simulated", ELAPSED], 1),
}
"""The text of the horizontal axis, the columns that it may show, of which the first that is known counts, and their scale."""

MARKS = {REPRODUCED: (COLOURS[2], "o"), UNDECIDED: (COLOURS[7], "D"), CONTRADICTED: (COLOURS[3], "s")}
"""The colour and the shape of each verdict."""


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
            write_figure(path, figure, dpi=200)
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
            half = rounds.score.apply(lambda scores: estimate(scores.tolist()).half if len(scores) > 2 else np.nan)
            mean = rounds.score.mean()
            possible = (0, 100) if filled.percent[view] else (None, None)  # an interval may exceed what a share can be
            low, high = ((mean + end).clip(*possible) for end in (-half, half))
            found[row] = pandas.DataFrame({"x": rounds.x.mean(), "mean": mean, "low": low, "high": high})
    return found


def draw_differences(judged: pandas.DataFrame, path: Path) -> None:
    """Draw ours minus published with its 95 % interval for each judged figure, a line of ``results/verdicts.csv``.

    The unit is the figure's margin, so that one band shows the margins of all. The same figures give the same SVG file.
    """
    figure = Figure(figsize=(9, 1.4 + 0.2 * len(judged)), layout="constrained")
    axes = figure.subplots()
    axes.axvspan(-1, 1, color="#e3efe7", label="margin")
    for place, one in enumerate(judged.itertuples()):
        ends, margin = np.array([one.low, one.high]), one.margin
        low, high = np.log(ends) / np.log(margin) if one.figure == "rounds" else ends / margin
        mark, _, exploratory = one.verdict.partition(" ")
        colour, shape = MARKS[mark]
        axes.plot([low, high], [place, place], color=colour, linewidth=1.3)
        face, name = "white" if exploratory else colour, f"mark-{place}"
        axes.plot((low + high) / 2, place, shape, color=colour, mfc=face, ms=5, label=one.verdict, gid=name, clip_on=False)
    names = [", ".join(filter(None, (one.table, one.row, one.column, one.figure))) for one in judged.itertuples()]
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xscale("symlog", linthresh=2)
    ticks = [tick for tick in (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50) if tick in range(*map(int, axes.get_xlim()))]
    axes.set_xticks(ticks, map(str, ticks))
    axes.set(xlabel="Ours minus published, in margins", ylim=(len(names) - 0.5, -0.5))
    axes.grid(color="#e6e6e6", linewidth=0.5)
    shown = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    with rc_context({"svg.hashsalt": "flcog", "svg.fonttype": "none"}):
        write_figure(path, figure, metadata={"Date": None, "Creator": None})
