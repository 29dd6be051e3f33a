"""The rounds and simulated seconds until a target, a point for each seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flcog.commands.compare.curves import COLOURS, write_both, write_caption
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import Result


def draw_targets(filled: ResultTable, out: Path) -> list[Path]:
    """Draw ``targets.png`` and ``targets.pdf``, a line of panels for each setting and target; no files without targets."""
    found = {
        (column, target): {
            row: runs for row in filled.table.rows if (runs := [run for run in filled.of(row, column) if run.finished])
        }
        for column in filled.table.columns
        for target in sorted({target for result in filled.in_column(column) for target in result.targets})
    }
    if not found:
        return []

    def figure() -> Figure:
        timed = any(result.simulated for result in filled.results)
        size = (4.0 + 3.6 * (1 + timed), 0.9 + sum(0.5 + 0.26 * len(rows) for rows in found.values()))
        made = Figure(figsize=size, layout="constrained")
        places = made.subplots(len(found), 1 + timed, squeeze=False, sharey="row")
        for line, ((column, target), rows) in zip(places, found.items(), strict=True):
            line[0].set_title(column)
            rounds = {row: [run.targets[target][0] for run in runs if target in run.targets] for row, runs in rows.items()}
            _draw(line[0], rows, rounds, f"Rounds to {target}")
            if timed:
                seconds = {row: [run.simulated[target] for run in runs if target in run.simulated] for row, runs in rows.items()}
                _draw(line[1], rows, seconds, f"Simulated seconds to {target}")
        write_caption(made, "Points: seeds; lines: means, where all seeds reached the target.")
        return made

    return write_both(figure, out, "targets")


def _draw(axes: Axes, rows: Mapping[str, Sequence[Result]], values: Mapping[str, Sequence[float]], label: str) -> None:
    for place, (row, runs) in enumerate(rows.items()):
        found, colour = values[row], COLOURS[place % len(COLOURS)]
        axes.plot(found, [place] * len(found), "o", color=colour, markersize=4, alpha=0.7)
        if missed := len(runs) - len(found):
            text, units = f"{missed} missed", ("axes fraction", "data")
            axes.annotate(text, (1.0, place), xycoords=units, fontsize=7.5, color=colour, ha="right", va="center")
        else:
            axes.plot([fmean(found)] * 2, [place - 0.32, place + 0.32], color=colour, linewidth=1.6)
    axes.set_xlabel(label)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.margins(x=0.12)
    axes.grid(color="#e6e6e6", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
