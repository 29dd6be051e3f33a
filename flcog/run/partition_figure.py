"""Bubble chart of a partition, as papers print it: clients across, classes up, a circle for each pair with its area by count."""

import numpy as np
from matplotlib.figure import Figure

from flcog.data import Federation
from flcog.data.label_statistics import label_table, num_labels

_COLOUR, _BARS, _GRID = "#1f5f99", "#9db8d0", "#e6e6e6"


def partition_figure(federation: Federation, max_clients: int = 200, max_classes: int = 100) -> Figure:
    """How many training samples of each class each client holds, with the totals of both along the edges.

    The area of a circle is proportional to the count. Where there are more clients or classes than can be told apart, evenly
    spaced clients and the most frequent classes are shown, and the axis says so.
    """
    table = label_table(federation)[:, : num_labels(federation)]
    clients = np.arange(0, table.shape[0], -(-table.shape[0] // max_clients))
    per_class = np.asarray(table.sum(axis=0))
    classes = np.sort(np.argsort(-per_class, kind="stable")[:max_classes])
    counts = table[clients][:, classes].toarray()
    names = [federation.class_names[c] if federation.class_names else str(c) for c in classes]

    column = min(0.36, 9 / len(clients))  # the distances between circles, in inches
    row = min(0.36, max(column, 2.4 / len(classes)), 7 / len(classes))
    size = (column * len(clients) + 2.5, max(row * len(classes), 0.9) + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[size[0] - 2, 0.4], height_ratios=[0.4, size[1] - 1])
    chart = figure.add_subplot(grid[1, 0], xlim=(-0.5, len(clients) - 0.5), ylim=(-0.5, len(classes) - 0.5))
    client, label = np.nonzero(counts)
    area = (72 * 0.94 * min(row, max(column, 0.1))) ** 2 / counts.max(initial=1)
    circles = chart.scatter(
        client, label, area * counts[client, label], _COLOUR, alpha=0.85, linewidths=0, clip_on=False, zorder=2
    )
    chart.set_xticks(shown := np.arange(0, len(clients), _step(column, 0.3)), clients[shown].astype(str), fontsize=8)
    chart.set_yticks(shown := np.arange(0, len(classes), _step(row, 0.14)), [names[i] for i in shown], fontsize=8)
    chart.set_xlabel("Client" + (f" ({len(clients)} of {table.shape[0]:,})" if len(clients) < table.shape[0] else ""))
    most = f" ({len(classes)} most frequent of {table.shape[1]:,})" if len(classes) < table.shape[1] else ""
    chart.set_ylabel(("Bin of the target" if federation.task == "regression" else "Class") + most)
    chart.grid(color=_GRID, linewidth=0.5, zorder=0)
    chart.set_axisbelow(True)
    chart.spines[:].set_color(_BARS)

    sizes = federation.partition.sizes[clients]
    top = figure.add_subplot(grid[0, 0], sharex=chart)
    top.bar(np.arange(len(clients)), sizes, width=0.8, color=_BARS)
    top.set_yticks([sizes.max()], [f"{sizes.max():,}"], fontsize=7)
    side = figure.add_subplot(grid[1, 1], sharey=chart)
    side.barh(np.arange(len(classes)), per_class[classes], height=0.8, color=_BARS)
    side.set_xticks([per_class.max()], [f"{per_class.max():,}"], fontsize=7)
    for edge in (top, side):
        edge.tick_params(length=2, color=_BARS)
        edge.spines[:].set_visible(False)
    top.tick_params(labelbottom=False, bottom=False)
    side.tick_params(labelleft=False, left=False)
    largest = int(counts.max(initial=1))
    first = largest - largest % 10 ** (len(str(largest)) - 1)  # rounded down to its first digit
    handles, labels = circles.legend_elements(
        "sizes",
        num=sorted({first, max(1, first // 4), max(1, first // 20)}),
        func=lambda areas: areas / area,
        fmt="{x:,.0f}",
        color=_COLOUR,
        alpha=0.85,
        markeredgewidth=0,
    )
    figure.legend(
        handles, labels, title="Samples", loc="outside right upper", frameon=False, labelspacing=1.8, fontsize=8, title_fontsize=8
    )
    return figure


def _step(spacing: float, wanted: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... at which labels lie ``wanted`` inches apart."""
    steps = (base * 10**power for power in range(7) for base in (1, 2, 5))
    return next(step for step in steps if step * spacing >= wanted)
