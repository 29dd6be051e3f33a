"""The scores of a comparison against the number that its ``figure`` names, as points with intervals."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flcog.commands.compare.axis import Axis
from flcog.commands.compare.curves import COLOURS, STYLES, bars_caption, metric_label, write_both, write_caption
from flcog.commands.compare.paired import Estimate
from flcog.commands.compare.result_table import ResultTable

LOGARITHMIC = 5.0
"""Numbers above 0 lie on a logarithmic axis if the largest is at least this many times the smallest."""

Points = Sequence[tuple[float, Estimate]]
"""(number, score) in the order of the numbers."""


def draw_scores(filled: ResultTable, out: Path) -> list[Path]:
    """Draw ``scores.png`` and ``scores.pdf`` for a table with a ``figure``, as soon as one of its lines has two points."""
    axis = filled.table.figure
    if axis is None:
        return []
    panels = {title: lines for title, lines in _panels(filled, axis).items() if any(len(line) > 1 for line in lines.values())}
    if not panels:
        return []

    def figure() -> Figure:
        made = Figure(figsize=(0.6 + 4.2 * len(panels) + 1.6 * bool(axis.columns), 3.6), layout="constrained")
        places = made.subplots(1, len(panels), squeeze=False, sharey=True).flatten()
        for axes, (title, lines) in zip(places, panels.items(), strict=True):
            _draw(axes, lines)
            axes.set(title=title, xlabel=axis.label)
        if percent := filled.is_percent(filled.columns[0]):  # the bars of three seeds may be wide: they are cut off
            low, high = places[0].get_ylim()
            places[0].set_ylim(max(low, 0), min(high, 100))
        metric = next((result.metric for result in filled.results if result.metric), None)
        places[0].set_ylabel(metric_label(metric, percent))
        handles = places[-1].get_legend_handles_labels()
        if len(handles[0]) > 1:
            places[-1].legend(*handles, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7.5, frameon=False)
        counts = [score.count for lines in panels.values() for line in lines.values() for _, score in line]
        write_caption(made, bars_caption(counts, filled.table.confidence, "mean"))
        return made

    return write_both(figure, out, "scores")


def _panels(filled: ResultTable, axis: Axis) -> Mapping[str, Mapping[str, Points]]:
    """For each panel, its lines by name. A row without a number has its score at both ends of the axis."""
    if axis.columns:
        return {
            panel: {
                row: _line({x: filled.estimate(row, column) for column, x in numbers.items() if column in filled.columns})
                for row in filled.table.rows
            }
            for panel, numbers in axis.columns.items()
        }
    ends = min(axis.rows.values()), max(axis.rows.values())
    found = {}
    for column in filled.table.columns:
        scores = {row: filled.estimate(row, column) for row in filled.table.rows}
        levels = {row: _line(dict.fromkeys(ends, score)) for row, score in scores.items() if row not in axis.rows}
        found[column] = {axis.label: _line({x: scores[row] for row, x in axis.rows.items() if row in scores}), **levels}
    return found


def _line(scores: Mapping[float, Estimate]) -> Points:
    return [(x, score) for x, score in sorted(scores.items()) if score.count]


def _draw(axes: Axes, lines: Mapping[str, Points]) -> None:
    for number, (name, points) in enumerate(lines.items()):
        if not points:
            continue
        xs, means = [x for x, _ in points], [score.mean for _, score in points]
        halves = [score.half if score.count > 2 and math.isfinite(score.half) else 0.0 for _, score in points]
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        if points[0][1] is points[-1][1] and len(points) > 1:
            axes.plot(xs, means, "--", color=colour, linewidth=1.1, label=name)
        else:
            axes.errorbar(xs, means, halves, fmt=f"o{style}", color=colour, markersize=3.5, capsize=2, linewidth=1.2, label=name)
    numbers = [x for points in lines.values() for x, _ in points]
    if min(numbers) > 0 and max(numbers) >= LOGARITHMIC * min(numbers):
        axes.set_xscale("log")
        axes.minorticks_off()
    ticks = sorted(set(numbers))
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.grid(color="#e6e6e6", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
