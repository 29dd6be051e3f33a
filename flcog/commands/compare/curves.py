"""The curves of a comparison: the compared metric against rounds, one panel per setting, each line labelled at its end."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flcog.commands.compare.facts import History
from flcog.commands.compare.findings import percent
from flcog.commands.compare.folder import OUT_REMEDY
from flcog.commands.compare.paired import Estimate, estimate
from flcog.commands.compare.plan import Table
from flcog.commands.compare.results import Result, span
from flcog.core.files import write_figure
from flcog.core.monitor import is_share

Series = Sequence[Sequence[tuple[float, float]]]
"""(round, value) of each evaluation, for each seed."""

COLOURS = ("#1f5f99", "#d98032", "#3a8f5c", "#a23b52", "#7a5ea8", "#8a6d3b", "#4aa3b5", "#6b6b6b")
STYLES = ("-", "--", ":", "-.")
GREY = "#c4c4c4"
PANELS_A_LINE = 3
MOST_SPAN = 3.0
"""Panels share a vertical axis if it is at most this many times as long as the shortest panel's own axis."""


@dataclass(frozen=True)
class Curve:
    """Over rounds, the mean over the seeds that have come so far, and its interval."""

    rounds: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Panel:
    """A part of the figure.

    Args:
        title: above it.
        arms: the evaluations of the arms that have a colour, by name; at most as many as there are colours.
        grey: further arms, for comparison.
        ylabel: the text of its vertical axis.
        styles: the number of each arm's colour.
    """

    title: str
    arms: Mapping[str, Series]
    grey: Mapping[str, Series]
    ylabel: str
    styles: Mapping[str, int]

    @property
    def values(self) -> list[float]:
        """All measured values, without infinities."""
        seeds = [seed for arms in (self.arms, self.grey) for series in arms.values() for seed in series]
        return [value for seed in seeds for _, value in seed if math.isfinite(value)]


def curves_figure(settings: Mapping[str, Mapping[str, Series]], metrics: Mapping[str, str], confidence: float) -> Figure:
    """Means over seeds as lines, with confidence intervals as bands.

    The arms of a single setting have a panel each, with the others in grey, so that bands do not cover each other. Several
    settings have a panel each, or more panels if a setting has more arms than there are colours.

    Args:
        settings: for each setting, each arm's evaluations.
        metrics: for each setting, the text of the vertical axis.
        confidence: of the bands.
    """
    panels = _panels(settings, metrics)
    columns = 2 if len(panels) == 4 else min(len(panels), PANELS_A_LINE)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(0.6 + 3.4 * columns, 0.6 + 2.6 * lines), layout="constrained")
    places = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes in places[len(panels) :]:
        axes.remove()
    ranges, shared = _ranges(panels)
    for place, (axes, panel, limits) in enumerate(zip(places, panels, ranges, strict=False)):
        _draw(axes, panel, confidence, limits)
        if place % columns == 0 or not shared:
            axes.set_ylabel(panel.ylabel)
    caption = _caption(settings, confidence, any(panel.grey for panel in panels), shared or len(panels) == 1)
    write_caption(figure, caption)
    return figure


def write_caption(figure: Figure, text: str) -> None:
    """Write a text below the figure, in lines that are no longer than the figure is wide."""
    letters_an_inch = 15  # of eight points
    figure.supxlabel(textwrap.fill(text, round(letters_an_inch * figure.get_figwidth())), fontsize=8, color="#555555")


def _panels(settings: Mapping[str, Mapping[str, Series]], metrics: Mapping[str, str]) -> list[Panel]:
    panels = []
    for setting, arms in settings.items():
        drawn = {name: series for name, series in arms.items() if series}
        styles = {name: place % len(COLOURS) for place, name in enumerate(arms)}
        bands = any(len(series) > 2 for series in drawn.values())
        if len(settings) == 1 and len(drawn) > 2 and bands:
            for name in drawn:
                others = {other: series for other, series in drawn.items() if other != name}
                panels.append(Panel(name, {name: drawn[name]}, others, metrics[setting], styles))
            continue
        parts = [list(drawn)[i : i + len(COLOURS)] for i in range(0, max(1, len(drawn)), len(COLOURS))]
        for number, part in enumerate(parts, start=1):
            title = f"{setting} ({number} of {len(parts)})" if len(parts) > 1 else setting
            panels.append(Panel(title, {name: drawn[name] for name in part}, {}, metrics[setting], styles))
    return panels


def _ranges(panels: Sequence[Panel]) -> tuple[list[tuple[float, float] | None], bool]:
    """Each panel's vertical axis, and whether all have the same: of the same measure, and long enough for each."""
    own = [(min(panel.values), max(panel.values)) if panel.values else None for panel in panels]
    spans = [high - low for low, high in filter(None, own)]
    low, high = min((low for low, _ in filter(None, own)), default=0.0), max((high for _, high in filter(None, own)), default=0.0)
    shared = len({panel.ylabel for panel in panels}) == 1 and bool(spans) and high - low <= MOST_SPAN * min(spans)
    ranges = [(low, high)] * len(panels) if shared else own
    return [None if not found or found[0] == found[1] else _with_margin(*found) for found in ranges], shared


def _with_margin(low: float, high: float) -> tuple[float, float]:
    margin = 0.06 * (high - low)
    return low - margin, high + margin


def _draw(axes: Axes, panel: Panel, confidence: float, limits: tuple[float, float] | None) -> None:
    for series in panel.grey.values():
        curve = over_seeds(series, confidence)
        axes.plot(curve.rounds, curve.mean, color=GREY, linewidth=0.8, zorder=1)
    ends = []
    for name, series in panel.arms.items():
        curve = over_seeds(series, confidence)
        number = panel.styles[name]
        colour, marker = COLOURS[number], "o" if len(curve.rounds) == 1 else None
        style = STYLES[number % len(STYLES)] if len(panel.arms) > 1 else "-"
        axes.plot(curve.rounds, curve.mean, style, color=colour, label=name, linewidth=1.3, marker=marker, markersize=4)
        axes.fill_between(curve.rounds, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
        ends.append((float(curve.rounds[-1]), float(curve.mean[-1]), name, colour))
    if limits is not None:  # the bands of two or three seeds may be wide: they are cut off
        axes.set_ylim(*limits)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel("Round", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.grid(color="#e6e6e6", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.title not in panel.arms:
        _label_ends(axes, ends)


def _label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write the names at the lines' ends, moved apart where they would cover each other."""
    low, high = axes.get_ylim()
    step, last = 0.075 * (high - low), -math.inf
    top = high - step * len(ends)  # room for the names above the lowest
    for x, y, name, colour in sorted((end for end in ends if math.isfinite(end[1])), key=lambda end: end[1]):
        top += step
        last = max(min(y, top), last + step)
        place = (1.02, (last - low) / (high - low))
        axes.annotate(
            name, (x, y), place, textcoords="axes fraction", fontsize=7.5, color=colour, va="center", annotation_clip=False
        )


def _caption(settings: Mapping[str, Mapping[str, Series]], confidence: float, grey: bool, shared: bool) -> str:
    """The meaning of lines and bands, and whether the vertical axes differ."""
    counts = sorted({len(series) for arms in settings.values() for series in arms.values() if series})
    if not counts:
        return ""
    text = "One seed" if counts[-1] == 1 else f"Means over {span(counts)} seeds"
    if counts[-1] > 2:
        fewer = "" if counts[0] > 2 else ", from three seeds on"
        text += f"; bands: {percent(confidence)} intervals of the mean (Student's t{fewer})"
    text += "; grey: the other arms" * grey
    name = next(iter(settings)) if len(settings) == 1 else ""
    return f"{name}. {text}.".removeprefix(". ") + ("" if shared else " The panels' vertical axes differ.")


def bars_caption(counts: Sequence[int], confidence: float, mean: str) -> str:
    """The meaning of points and bars, for the numbers of seeds in the means."""
    text = "One seed" if max(counts) == 1 else f"Means over {span(counts)} seeds"
    return text + (f"; bars: {percent(confidence)} intervals of the {mean} (Student's t)." if max(counts) > 2 else ".")


def over_seeds(seeds: Series, confidence: float) -> Curve:
    """The mean over seeds at each round that any of them evaluated, with its interval from three seeds on."""
    values: dict[float, list[float]] = {}
    for series in seeds:
        for round, value in series:
            values.setdefault(round, []).append(value)
    rounds = sorted(values)
    found: list[Estimate] = [estimate(values[round], confidence) for round in rounds]
    # No band for two seeds: their interval is thirteen deviations wide.
    halves = np.array([e.half if e.count > 2 else np.nan for e in found])
    means = np.array([e.mean for e in found])
    return Curve(np.array(rounds), means, means - halves, means + halves)


Evaluations = dict[str, dict[str, Series]]
"""For each setting, each arm's evaluations."""


def draw_curves(table: Table, results: Sequence[Result], out: Path) -> list[Path]:
    """Draw the compared metric against rounds, as ``curves.png`` and ``curves.pdf``; no files if no run has been evaluated yet."""
    panels, labels = evaluations(table, results)
    if not any(series for arms in panels.values() for series in arms.values()):
        return []
    return write_both(lambda: curves_figure(panels, labels, table.confidence), out, "curves")


def write_both(draw: Callable[[], Figure], out: Path, name: str) -> list[Path]:
    """Write a figure for the screen and for a paper."""
    with rc_context({"pdf.fonttype": 42}):  # fonts that publishers accept
        figure = draw()
        paths = [out / f"{name}.png", out / f"{name}.pdf"]
        for path in paths:
            write_figure(path, figure, dpi=200, remedy=OUT_REMEDY)
    return paths


def evaluations(table: Table, results: Sequence[Result]) -> tuple[Evaluations, dict[str, str]]:
    """The evaluations of the compared metric, shares in per cent, and the text of each setting's vertical axis."""
    panels: Evaluations = {}
    labels: dict[str, str] = {}
    # Columns that differ only in the last round that counts share a curve: the last one's.
    curves = {(part.setting, part.metric) if part.metric else column: column for column, part in table.columns.items()}
    for column in curves.values():
        histories = {(result.row, result.seed): result.history for result in results if result.column == column}
        metric = next((result.metric for result in results if result.column == column and result.metric), None)
        measured = [row[metric] for history in histories.values() for row in history if metric in row] if metric else []
        scale = 100 if metric and is_share(metric, measured) else 1
        panels[column] = {
            row: _evaluations([histories.get((row, seed), ()) for seed in table.seeds], metric, scale) for row in table.rows
        }
        labels[column] = metric_label(metric, scale == 100)
    return panels, labels


def metric_label(metric: str | None, percent: bool) -> str:
    """The text of a vertical axis, such as "Test accuracy (%)"."""
    words = f"test {metric.removeprefix('test/')}" if metric and metric.startswith("test/") else metric or ""
    return words[:1].upper() + words[1:] + (" (%)" if percent else "")


def _evaluations(histories: Sequence[History], metric: str | None, scale: float) -> Series:
    """(round, value) of each evaluation, for each run that has any."""
    evaluated = ([(row["round"], scale * row[metric]) for row in history if metric in row] for history in histories if metric)
    return [values for values in evaluated if values]
