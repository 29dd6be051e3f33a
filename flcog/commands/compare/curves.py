"""The curves of a comparison: the compared metric against rounds, one line per arm, one panel per setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flcog.commands.compare.findings import percent
from flcog.commands.compare.paired import Estimate, estimate
from flcog.commands.compare.plan import OUT_REMEDY, Cell, Table
from flcog.commands.compare.results import History, compared_metric
from flcog.core.files import write_figure
from flcog.core.monitor import lower_is_better

Series = Sequence[Sequence[tuple[float, float]]]
"""(round, value) of each evaluation, for each seed."""

COLOURS = ("#1f5f99", "#d98032", "#3a8f5c", "#a23b52", "#7a5ea8", "#8a6d3b", "#4aa3b5", "#6b6b6b")
STYLES = ("-", "--", ":", "-.")
PANELS_A_LINE = 3


@dataclass(frozen=True)
class Curve:
    """Over rounds, the mean over the seeds that have come so far, and its interval."""

    rounds: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curves_figure(panels: Mapping[str, Mapping[str, Series]], metrics: Mapping[str, str], confidence: float) -> Figure:
    """Means over seeds as lines, with confidence intervals as bands; more arms than colours are told apart by dashes.

    Args:
        panels: for each setting, each arm's evaluations.
        metrics: the vertical axes' texts; where all are alike, each line of panels has one.
        confidence: of the bands.
    """
    columns = min(len(panels), PANELS_A_LINE)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(1.4 + 3.8 * columns, 0.3 + 3.1 * lines), layout="constrained")
    places = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes in places[len(panels) :]:
        axes.remove()
    for axes, (title, arms) in zip(places, panels.items(), strict=False):
        _panel(axes, arms, confidence)
        axes.set_title(title)
    alike = len(set(metrics.values())) == 1
    for axes, title in list(zip(places, panels, strict=False))[:: columns if alike else 1]:
        axes.set_ylabel(metrics[title])
    counts = sorted({len(series) for arms in panels.values() for series in arms.values() if series})
    _legend(figure, counts, confidence)
    return figure


def _panel(axes: Axes, arms: Mapping[str, Series], confidence: float) -> None:
    for position, (name, series) in enumerate(arms.items()):
        if not series:
            continue
        curve = over_seeds(series, confidence)
        style, colour = STYLES[position // len(COLOURS) % len(STYLES)], COLOURS[position % len(COLOURS)]
        marker = "o" if len(curve.rounds) == 1 else None
        axes.plot(curve.rounds, curve.mean, style, color=colour, label=name, linewidth=1.2, marker=marker, markersize=4)
        axes.fill_between(curve.rounds, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
    # The bands of two or three seeds may be wide: the axis shows what was measured, and they are cut off there.
    values = [value for series in arms.values() for seed in series for _, value in seed if np.isfinite(value)]
    if values and max(values) > min(values):
        margin = 0.06 * (max(values) - min(values))
        axes.set_ylim(min(values) - margin, max(values) + margin)
    axes.set_xlabel("Round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#e6e6e6", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, counts: Sequence[int], confidence: float) -> None:
    handles = {text: line for axes in figure.axes for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    if not handles:
        return
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    fewer = "" if counts[0] > 2 else ",\nfrom three seeds on"
    band = f"Mean over {seeds} seeds,\nband: its {percent(confidence)} interval\n(Student's t{fewer})"
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside right upper",
        frameon=False,
        fontsize=8,
        title=band if counts[-1] > 2 else f"Mean over {seeds} seeds" if counts[-1] == 2 else "One seed",
        title_fontsize=8,
        alignment="left",
        ncols=-(-len(handles) // 14),
    )


def over_seeds(seeds: Series, confidence: float) -> Curve:
    """The mean over seeds at each round that any of them evaluated, and from three of them on its interval."""
    values: dict[float, list[float]] = {}
    for series in seeds:
        for round, value in series:
            values.setdefault(round, []).append(value)
    rounds = sorted(values)
    found: list[Estimate] = [estimate(values[round], confidence) for round in rounds]
    # Two seeds' interval is thirteen of their deviations wide, at every round anew: no band.
    halves = np.array([e.half if e.count > 2 else np.nan for e in found])
    means = np.array([e.mean for e in found])
    return Curve(np.array(rounds), means, means - halves, means + halves)


def draw_curves(table: Table, runs: Sequence[Cell], out: Path) -> list[Path]:
    """Draw the compared metric against rounds, as ``curves.png`` and ``curves.pdf``; no files where nothing has been evaluated yet."""
    panels: dict[str, dict[str, Series]] = {}
    labels: dict[str, str] = {}
    # Columns that differ in nothing but the last round that counts have one curve: the last one's.
    curves = {(part.setting, part.metric) if part.metric else column: column for column, part in table.columns.items()}
    for column in curves.values():
        histories = {(cell.row, cell.seed): cell.history() for cell in runs if cell.column == column}
        metric = next(
            (name for cell in runs if cell.column == column and (name := compared_metric(cell.metric, cell.history()))), None
        )
        measured = [row[metric] for history in histories.values() for row in history if metric in row] if metric else []
        scale = 100 if metric and _is_share(metric, measured) else 1
        panels[column] = {
            row: _evaluations([histories.get((row, seed), []) for seed in table.seeds], metric, scale) for row in table.rows
        }
        words = f"test {metric.removeprefix('test/')}" if metric and metric.startswith("test/") else metric or ""
        labels[column] = words[:1].upper() + words[1:] + (" (%)" if scale == 100 else "")
    if not any(series for arms in panels.values() for series in arms.values()):
        return []
    with rc_context({"pdf.fonttype": 42}):  # fonts that publishers take
        figure = curves_figure(panels, labels, table.confidence)
        paths = [out / "curves.png", out / "curves.pdf"]
        for path in paths:
            write_figure(path, figure, dpi=200, remedy=OUT_REMEDY)
    return paths


def _is_share(metric: str, measured: Sequence[float]) -> bool:
    return not lower_is_better(metric.removesuffix("_std")) and not any(abs(value) > 1 for value in measured)


def _evaluations(histories: Sequence[History], metric: str | None, scale: float) -> Series:
    """(round, value) of each evaluation, for each run that has any."""
    evaluated = ([(row["round"], scale * row[metric]) for row in history if metric in row] for history in histories if metric)
    return [values for values in evaluated if values]
