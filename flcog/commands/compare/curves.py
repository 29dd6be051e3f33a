"""The curves of a comparison: a metric against rounds, one line per arm, one panel per setting."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from flcog.commands.compare.plan import OUT_REMEDY, Cell, Table
from flcog.commands.compare.table import compared_metric
from flcog.core.files import write_figure

Series = Sequence[Sequence[tuple[float, float]]]
"""(round, value) of each evaluation, for each seed."""


COLOURS = ("#1f5f99", "#d98032", "#3a8f5c", "#a23b52", "#7a5ea8", "#8a6d3b", "#4aa3b5", "#6b6b6b")


def curves_figure(panels: Mapping[str, Mapping[str, Series]], label: str) -> Figure:
    """Means over seeds as lines, the seeds' range as a band; more arms than colours are told apart by dashes.

    Args:
        panels: for each setting, each arm's evaluations.
        label: of the vertical axis.
    """
    figure = Figure(figsize=(1 + 4.2 * len(panels), 3.4), layout="constrained")
    styles = ("-", "--", ":", "-.")
    for axes, (title, arms) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for position, (name, seeds) in enumerate(arms.items()):
            if not seeds:
                continue
            rounds, low, mean, high = _over_seeds(seeds)
            style = styles[position // len(COLOURS) % len(styles)]
            colour = COLOURS[position % len(COLOURS)]
            axes.plot(rounds, mean, style, color=colour, label=name, linewidth=1.2)
            if len(seeds) > 1:
                axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set(title=title, xlabel="Round")
        axes.grid(color="#e6e6e6", linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel(label)
    handles = {text: line for axes in figure.axes for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside right upper",
            frameon=False,
            fontsize=8,
            ncols=-(-len(handles) // 14),
        )
    return figure


def _over_seeds(seeds: Series) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rounds, and the least, mean and largest value of the seeds that have come so far."""
    values: dict[float, list[float]] = {}
    for series in seeds:
        for round, value in series:
            values.setdefault(round, []).append(value)
    rounds = sorted(values)
    spread = [(min(values[r]), sum(values[r]) / len(values[r]), max(values[r])) for r in rounds]
    return np.array(rounds), *(np.array(column) for column in zip(*spread, strict=True))  # type: ignore[return-value]


def draw_curves(table: Table, runs: Sequence[Cell], path: Path) -> bool:
    """Draw the compared metric against rounds; False where nothing has been evaluated yet."""
    histories = {(cell.column, cell.row, cell.seed): cell.history() for cell in runs}
    metric = compared_metric(table.metric, list(histories.values()))
    if metric is None or not any(metric in values for history in histories.values() for values in history):
        return False

    def series(column: str, row: str) -> list[list[tuple[float, float]]]:
        found = [histories.get((column, row, seed), []) for seed in table.seeds]
        evaluated = ([(values["round"], values[metric]) for values in history if metric in values] for history in found)
        return [values for values in evaluated if values]

    panels = {column: {row: series(column, row) for row in table.rows} for column in table.columns}
    write_figure(path, curves_figure(panels, metric), remedy=OUT_REMEDY)
    return True
