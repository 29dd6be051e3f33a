"""The picture of a partition that papers print: clients across, classes up, one circle each, area by count.

Figures are built without pyplot: no display, no global state, and nothing to close.
"""

from math import sqrt

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flcog.data import Federation
from flcog.partition_report import label_table

_COLOUR = "#2b6c99"
_LARGEST_CIRCLE = 0.94  # of a cell's side


def partition_figure(federation: Federation, max_clients: int = 200, max_classes: int = 100) -> Figure:
    """Bubble chart of training samples per client and class, with the totals of both along the edges.

    Circle areas are proportional to counts. Where there are more clients or classes than can be told apart, evenly spaced
    clients and the most frequent classes are shown, and the axis says so.

    Args:
        federation: the clients and their samples.
        max_clients: clients to show at most, >= 1.
        max_classes: classes to show at most, >= 1.

    Returns:
        A figure; save it with ``figure.savefig(path)``, as PDF for print.
    """
    table = label_table(federation)
    clients = np.unique(np.linspace(0, table.shape[0] - 1, min(table.shape[0], max_clients)).round().astype(int))
    per_class = np.asarray(table.sum(axis=0))
    classes = np.sort(np.argsort(-per_class, kind="stable")[:max_classes])
    counts = table[clients][:, classes].toarray()
    names = [str(federation.class_names[c]) if federation.class_names else str(c) for c in classes]

    # Everything is placed in inches, so that the circles of the key have the size of the circles in the chart.
    cell = min(0.36, 9.0 / len(clients), 7.0 / len(classes))
    width, height = cell * len(clients), cell * len(classes)
    left, bottom, top, right, gap = 0.55 + 0.075 * max(map(len, names)), 0.55, 0.75, 1.0, 0.08
    total = (left + max(width, 1.5) + right, bottom + max(height, 0.5) + top)
    figure = Figure(figsize=total)

    def place(x: float, y: float, w: float, h: float, share: Axes | None = None, axis: str = "") -> Axes:
        box = (x / total[0], y / total[1], w / total[0], h / total[1])
        return figure.add_axes(box, **({f"share{axis}": share} if share is not None else {}))

    chart = place(left, bottom, width, height)
    _circles(chart, counts)
    _label_axes(chart, federation, clients, names, cell, table.shape)
    above = place(left, bottom + height + gap, width, 0.38, chart, "x")
    above.bar(np.arange(len(clients)), federation.partition.sizes[clients], width=0.8, color=_COLOUR)
    beside = place(left + width + gap, bottom, 0.38, height, chart, "y")
    beside.barh(np.arange(len(classes)), per_class[classes], height=0.8, color=_COLOUR)
    _quieten(above, beside)
    _key(figure, cell, int(counts.max()), (left + width) / total[0], (bottom + height + gap) / total[1])
    return figure


def _circles(chart: Axes, counts: np.ndarray) -> None:
    client, label = np.nonzero(counts)
    diameters = _LARGEST_CIRCLE * np.sqrt(counts[client, label] / counts.max())
    chart.set(xlim=(-0.5, counts.shape[0] - 0.5), ylim=(-0.5, counts.shape[1] - 0.5))
    # In units of the axes: the circles grow with the figure.
    chart.add_collection(
        EllipseCollection(
            diameters,
            diameters,
            np.zeros_like(diameters),
            units="xy",
            offsets=np.column_stack([client, label]),
            offset_transform=chart.transData,
            facecolor=_COLOUR,
            linewidth=0,
        )
    )


def _label_axes(
    chart: Axes, federation: Federation, clients: np.ndarray, names: list[str], cell: float, shape: tuple[int, int]
) -> None:
    some_clients = "" if len(clients) == shape[0] else f" ({len(clients)} of {shape[0]:,})"
    some_classes = "" if len(names) == shape[1] else f" ({len(names)} most frequent of {shape[1]:,})"
    chart.set_xlabel(f"Client{some_clients}")
    chart.set_ylabel(("Bin of the target" if federation.task == "regression" else "Class") + some_classes)
