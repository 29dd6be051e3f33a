"""The compared metric against the megabytes that were sent until then, one panel per setting, for arms that send unlike amounts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flcog.commands.compare.curves import (
    COLOURS,
    STYLES,
    Series,
    bars_caption,
    evaluations,
    over_seeds,
    write_both,
    write_caption,
)
from flcog.commands.compare.plan import Table
from flcog.commands.compare.results import Result

UNLIKE = 1.01
"""Arms whose bytes in a round differ by less than this factor send the same amount."""

UP, TOTAL = "comm/up_bytes_total", "comm/total_bytes"

Amounts = Mapping[str, Mapping[float, float]]
"""For each arm, the megabytes until each round, as means over seeds."""


def draw_megabytes(table: Table, results: Sequence[Result], out: Path) -> list[Path]:
    """Draw ``megabytes.png`` and ``megabytes.pdf``; no files if all arms of every setting send the same amount."""
    panels, labels = evaluations(table, results)
    drawn: dict[str, tuple[Amounts, str]] = {}
    for column, arms in panels.items():
        found = [result for result in results if result.column == column and arms.get(result.row)]
        both, up = _amounts(found, TOTAL), _amounts(found, UP)
        down = {row: {round: both[row][round] - up[row][round] for round in both[row]} for row in both}
        if _are_unlike(down):
            drawn[column] = both, "Megabytes sent up and down"
        elif _are_unlike(up):
            drawn[column] = up, "Megabytes sent up"
    if not drawn:
        return []

    def figure() -> Figure:
        made = Figure(figsize=(7.2 * len(drawn), 0.8 + 0.22 * max(12, len(table.rows))), layout="constrained")
        places = made.subplots(1, len(drawn), squeeze=False).flatten()
        for axes, (column, (amounts, label)) in zip(places, drawn.items(), strict=True):
            _draw(axes, panels[column], amounts, table.confidence)
            axes.set(title=column, xlabel=label, ylabel=labels[column])
        counts = [len(series) for arms in panels.values() for series in arms.values() if series]
        write_caption(made, bars_caption(counts, table.confidence, "last mean"))
        return made

    return write_both(figure, out, "megabytes")


def _amounts(results: Sequence[Result], total: str) -> Amounts:
    found: dict[str, dict[float, list[float]]] = {}
    for result in results:
        for row in result.history:
            if total in row:
                found.setdefault(result.row, {}).setdefault(row["round"], []).append(row[total] / 1e6)
    return {row: {round: fmean(values) for round, values in rounds.items()} for row, rounds in found.items()}


def _are_unlike(amounts: Amounts) -> bool:
    """Whether two arms differ in their mean amount per round."""
    means = [rounds[last] / last for rounds in amounts.values() for last in [max(rounds)]]
    return bool(means) and max(means) > UNLIKE * min(means)


def _draw(axes: Axes, arms: Mapping[str, Series], amounts: Amounts, confidence: float) -> None:
    """A line for each arm, with the interval of its last mean from three seeds on, and a legend in the order of these means."""
    ends = []
    for number, (name, series) in enumerate(arms.items()):
        if name not in amounts:  # it has no run yet, or withholds its bytes
            continue
        curve = over_seeds(series, confidence)
        sent = [amounts[name][round] for round in curve.rounds.tolist()]
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        (line,) = axes.plot(sent, curve.mean, style, color=colour, linewidth=1.2, label=name)
        half = np.nan_to_num(curve.high[-1] - curve.mean[-1])
        axes.errorbar(sent[-1], curve.mean[-1], half, fmt="o", color=colour, markersize=3.5, capsize=2, linewidth=0.8)
        ends.append((float(curve.mean[-1]), line))
    axes.set_xscale("log")
    axes.grid(color="#e6e6e6", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    lines = [line for _, line in sorted(ends, key=lambda end: -end[0])]
    axes.legend(handles=lines, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7.5, frameon=False)
