"""Bubble chart of a partition, as papers print it: clients across, classes up, a circle for each pair with its area by count.

Figures are built without pyplot: no display, no global state, nothing to close.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from flcog.data import Federation
from flcog.data.label_statistics import label_table, num_labels

_COLOUR, _BARS, _GRID = "#1f5f99", "#9db8d0", "#e6e6e6"


def partition_figure(federation: Federation, max_clients: int = 200, max_classes: int = 100) -> Figure:
    """How many training samples of each class each client holds, with the totals of both along the edges.

    The area of a circle is proportional to the count. Where there are more clients or classes than can be told apart, evenly
    spaced clients and the most frequent classes are shown, and the axis says so.

    Args:
        federation: the clients and their samples.
        max_clients: clients to show at most, >= 1.
        max_classes: classes to show at most, >= 1.

    Returns:
        A figure to save, e.g. ``partition_figure(federation).savefig("partition.pdf")``.
    """
    table = label_table(federation)[:, : num_labels(federation)]
    clients = np.arange(0, table.shape[0], -(-table.shape[0] // max_clients))
    per_class = np.asarray(table.sum(axis=0))
    classes = np.sort(np.argsort(-per_class, kind="stable")[:max_classes])
    counts = table[clients][:, classes].toarray()
    names = [federation.class_names[c] if federation.class_names else str(c) for c in classes]

    # All lengths are inches, so that the key's circles have the size of the chart's.
    column, row, diameter = _lengths(counts)
    width, height = column * len(clients), row * len(classes)
    left, bottom, right, top = 0.5 + 0.068 * max(map(len, names)), 0.5, 1.45, 0.55
    page = np.array([left + width + right, bottom + max(height, 0.9) + top])
    figure = Figure(figsize=(float(page[0]), float(page[1])))

    def axes_at(x: float, y: float, w: float, h: float) -> Axes:
        return figure.add_axes((x / page[0], y / page[1], w / page[0], h / page[1]))

    chart = axes_at(left, bottom, width, height)
    _draw_circles(chart, counts, diameter / column, diameter / row)
    _name_ticks(chart, clients, names, column, row)
    _name_axes(chart, counts, table.shape, "Bin of the target" if federation.task == "regression" else "Class")
    _draw_bars(axes_at(left, bottom + height + 0.06, width, 0.36), federation.partition.sizes[clients], upright=True)
    _draw_bars(axes_at(left + width + 0.06, bottom, 0.36, height), per_class[classes], upright=False)
    _draw_key(figure, max(1, int(counts.max())), diameter, (left + width + 0.5) / page[0], (bottom + height) / page[1])
    return figure


def _lengths(counts: np.ndarray) -> tuple[float, float, float]:
    """The width of a column, the height of a row and the diameter of the largest circle.

    Many clients make columns narrow: where a row is sparse, its circles may be wider than a column, so that the fullest row would fill
    up by 60 %.
    """
    clients, classes = counts.shape
    column = min(0.36, 9 / clients)
    row = min(0.36, max(column, 2.4 / classes), 7 / classes)
    fullest = np.sqrt(counts / max(1, counts.max())).sum(axis=0).max()
    return column, row, 0.94 * min(row, max(column, 0.6 * column * clients / max(1, fullest)))


def _name_axes(chart: Axes, shown: np.ndarray, table: tuple[int, ...], label: str) -> None:
    """Name both axes. If the chart shows only a part of the table, the names say so."""
    clients, classes = shown.shape
    chart.set_xlabel("Client" if clients == table[0] else f"Client ({clients} of {table[0]:,})")
    chart.set_ylabel(label if classes == table[1] else f"{label} ({classes} most frequent of {table[1]:,})")


def _draw_circles(chart: Axes, counts: np.ndarray, width: float, height: float) -> None:
    """``width`` and ``height`` are the largest circle's, in columns and rows."""
    client, label = np.nonzero(counts)
    scale = np.sqrt(counts[client, label] / counts.max(initial=1))
    chart.set(xlim=(-0.5, counts.shape[0] - 0.5), ylim=(-0.5, counts.shape[1] - 0.5))
    circles = EllipseCollection(
        width * scale,
        height * scale,
        np.zeros_like(scale),
        units="xy",
        offsets=np.column_stack([client, label]),
        offset_transform=chart.transData,
        facecolor=_COLOUR,
        alpha=0.85,
        linewidth=0,
        clip_on=False,
        zorder=2,
    )
    chart.add_collection(circles)


def _name_ticks(chart: Axes, clients: np.ndarray, names: list[str], column: float, row: float) -> None:
    shown_clients = np.arange(0, len(clients), _step(column, 0.3))
    shown_classes = np.arange(0, len(names), _step(row, 0.14))
    chart.set_xticks(shown_clients, [str(clients[i]) for i in shown_clients], fontsize=8)
    chart.set_yticks(shown_classes, [names[i] for i in shown_classes], fontsize=8)
    chart.tick_params(length=2, color=_BARS)
    chart.grid(color=_GRID, linewidth=0.5, zorder=0)
    chart.set_axisbelow(True)
    chart.spines[:].set_color(_BARS)


def _draw_bars(axes: Axes, totals: np.ndarray, *, upright: bool) -> None:
    positions = np.arange(len(totals))
    if upright:
        axes.bar(positions, totals, width=0.8, color=_BARS)
        axes.set(xlim=(-0.5, len(totals) - 0.5), xticks=[])
        axes.set_yticks([totals.max()], [f"{totals.max():,}"], fontsize=7)
    else:
        axes.barh(positions, totals, height=0.8, color=_BARS)
        axes.set(ylim=(-0.5, len(totals) - 0.5), yticks=[])
        axes.set_xticks([totals.max()], [f"{totals.max():,}"], fontsize=7)
    axes.tick_params(length=2, color=_BARS)
    axes.spines[:].set_visible(False)


def _draw_key(figure: Figure, largest: int, diameter: float, x: float, y: float) -> None:
    """Circles of three round counts, at the chart's scale."""
    digit = 10 ** (len(str(largest)) - 1)
    first = largest // digit * digit
    rounds = sorted({first, max(1, first // 4), max(1, first // 20)}, reverse=True)
    markers = [
        Line2D([], [], linestyle="", marker="o", color=_COLOUR, alpha=0.85, markeredgewidth=0, markersize=72 * diameter * size)
        for size in np.sqrt(np.array(rounds) / largest)
    ]
    figure.legend(
        markers,
        [f"{count:,}" for count in rounds],
        title="Samples",
        title_fontsize=8,
        fontsize=8,
        loc="upper left",
        bbox_to_anchor=(x, y),
        frameon=False,
        borderaxespad=0,
        # In units of the font's size, 8 points: room for the largest circle.
        handlelength=9 * diameter,
        labelspacing=0.5 + 4.5 * diameter,
    )


def _step(spacing: float, wanted: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... at which labels lie ``wanted`` inches apart."""
    steps = (base * 10**power for power in range(7) for base in (1, 2, 5))
    return next(step for step in steps if step * spacing >= wanted)
