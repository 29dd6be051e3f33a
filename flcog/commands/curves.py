"""A figure of curves: a panel for each score, and a line for each row of a table or each group of runs."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import pandas
from matplotlib.figure import Figure

from flcog.run.pictures import Picture, framed

COLOURS = ("#1f5f99", "#d98032", "#3a8f5c", "#a23b52", "#7a5ea8", "#8a6d3b", "#4aa3b5", "#6b6b6b")
LOOKS = [(colour, style) for style, colour in product(("-", "--", ":", "-."), COLOURS)]
PANELS_A_LINE = 3


class Panel(NamedTuple):
    """A panel with the labels of its axes. Each line has the columns ``x`` and ``mean``, and a band from ``low`` to ``high``."""

    title: str
    x: str
    y: str
    lines: Mapping[str, pandas.DataFrame]


def figure_of(panels: Sequence[Panel], names: Sequence[str]) -> Figure:
    """Draw the panels with one legend. ``names`` are the lines of all panels; a line looks the same in each."""
    columns = min(len(panels), PANELS_A_LINE)
    height = -(-len(panels) // columns)
    figure = Picture(figsize=(3.6 * columns + 2.0 * (len(names) > 1), 0.6 + 2.8 * height), layout="constrained")
    places = figure.subplots(height, columns, squeeze=False).flatten()
    for axes in places[len(panels) :]:
        axes.remove()
    for axes, panel in zip(places, panels, strict=False):
        looks = {name: LOOKS[names.index(name) % len(LOOKS)] for name in panel.lines}
        for name, line in panel.lines.items():
            colour, style = looks[name]
            marker = "o" if len(line) == 1 else None
            axes.plot(line.x, line["mean"], style, color=colour, linewidth=1.3, label=name, marker=marker)
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.12, linewidth=0)
        axes.set_title(panel.title)
        framed(axes, panel.x, panel.y)
    if len(names) > 1:
        shown = {label: line for axes in places for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(shown.values(), shown.keys(), loc="outside right upper", fontsize=8, frameon=False)
    return figure
