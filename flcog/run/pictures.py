"""Pictures of a run by matplotlib: its rounds, its clients, its confusion matrix and its partition."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from torchmetrics.functional.classification import multiclass_confusion_matrix
from torchmetrics.utilities.plot import plot_confusion_matrix

from flcog.core.monitor import is_share, main_metric
from flcog.data import Federation
from flcog.data.label_statistics import label_table, num_labels

SHARES = ("accuracy", "acc", "AP", "F1")
"""Last words of scores that are shown as per cent, unless the module logs them in percent."""
_COLOUR, _BARS, _GRID = "#1f5f99", "#9db8d0", "#e6e6e6"


class Picture(Figure):
    """A figure that a notebook shows, whether or not pyplot was imported."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=110, bbox_inches="tight")
        return file.getvalue()


def history_figure(rows: Sequence[Mapping[str, float]], columns: Sequence[str] = ()) -> Figure:
    """Draw columns by round: those that are named in one chart, a second measure against the axis at its right; or the usual ones."""
    known = list(dict.fromkeys(name for row in rows for name in row if name != "round"))
    unknown = [name for name in columns if name not in known]
    if unknown or not known:
        raise ValueError(
            f"no column {unknown[0]!r} in this run; it has {', '.join(known)}" if known else "this run has no rows yet: fit it"
        )
    measures: dict[str, list[str]] = {}
    for name in columns or _usual(rows, known):
        measures.setdefault(name.split("/")[-1], []).append(name)
    charts = [measures] if columns else [{measure: names} for measure, names in measures.items()]
    figure = Picture(figsize=(4.6 * len(charts), 3.2), layout="constrained")
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        framed(axes, "round")
        sides, lines = [axes] if len(chart) == 1 else [axes, axes.twinx()], list[Any]()
        for number, (measure, names) in enumerate(chart.items()):
            side = sides[min(number, len(sides) - 1)]
            for name in names:
                points = [(row["round"], row[name]) for row in rows if name in row]
                x, y = zip(*points, strict=True)
                lines += side.plot(x, y, marker="." * (len(points) < 40), color=f"C{len(lines)}", label=name)
            side.set_ylabel(", ".join(filter(None, [side.get_ylabel(), measure])))
            in_percent(side, measure, [row[name] for row in rows for name in names if name in row])
        if len(sides) > 1:
            figure.legend(handles=lines, loc="outside upper center", frameon=False)
        else:
            axes.legend(handles=lines, frameon=False)
        sides[-1].spines["top"].set_visible(False)
    return figure


def framed(axes: Axes, x: str, y: str = "") -> None:
    """Label the axes, count rounds and clients in whole numbers, and leave out the lines at the top and at the right."""
    axes.set(xlabel=x, ylabel=y)
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes.grid(color=_GRID, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def in_percent(axes: Axes, measure: str, values: Iterable[float]) -> None:
    """Show a share in per cent."""
    if measure.removesuffix("_mean").endswith(SHARES) and is_share(measure, values):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _usual(rows: Sequence[Mapping[str, float]], known: Sequence[str]) -> list[str]:
    main = next(filter(None, map(main_metric, reversed(rows))), None)
    score = [] if main is None else [f"{split}/{main.split('/')[-1]}" for split in ("val", "test")]
    usual = [name for name in dict.fromkeys([*score, "val/loss", "test/loss", "train/loss"]) if name in known]
    return usual or list(known[:1])


def client_figure(table: Mapping[str, np.ndarray], rows: Sequence[Mapping[str, float]]) -> Picture:
    """Each score against the client's samples, in order, and its spread over the rounds; and how often clients were selected."""
    if "times_selected" not in table:
        raise ValueError("a private method withholds all figures of single clients: there is nothing to draw")
    scores = {name: values for name, values in table.items() if "/client_" in name or "/personal_" in name}
    scores = {name: values for name, values in scores.items() if name.startswith("test/")} or scores
    count = 4 if scores else 1
    figure = Picture(figsize=(4.0 * count, 3.6), layout="constrained")
    *places, last = figure.subplots(1, count, squeeze=False)[0]
    for number, (name, values) in enumerate(scores.items()):
        (by_size, in_order, by_round), colour = places, f"C{number}"
        by_size.scatter(table["samples"], values, s=14, alpha=0.7, color=colour, label=name)
        ordered = np.sort(values[~np.isnan(values)])
        in_order.bar(np.arange(len(ordered)), ordered, width=1.0, alpha=0.55, color=colour)
        known = [row for row in rows if f"{name}_q50" in row]
        low, middle, high = ([row[f"{name}_q{q}"] for row in known] for q in (10, 50, 90))
        rounds = [row["round"] for row in known]
        by_round.plot(rounds, middle, color=colour, marker="." * (len(known) < 40))
        by_round.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        for axes in places:
            in_percent(axes, name, values[~np.isnan(values)])
    for axes, x in zip(places, ("samples", "clients, by score", "round: median, 10 % to 90 %"), strict=False):
        framed(axes, x, "score")
    most = int(table["times_selected"].max())
    last.hist(table["times_selected"], bins=np.arange(min(most + 1, 40) + 1) * max(1, -(-most // 40)) - 0.5, color="C7")
    framed(last, "times selected", "clients")
    last.yaxis.set_major_locator(MaxNLocator(integer=True))
    if scores:
        figure.legend(loc="outside upper left", ncols=len(scores), frameon=False)
    return figure


def confusion_figure(predictions: Any, class_names: Sequence[str] | None = None) -> Picture:
    """For each class of the samples, the shares of the classes that the model predicts for them, in per cent."""
    known = predictions if isinstance(predictions, dict) else {}
    if not {"prediction", "target"} <= known.keys() or known["prediction"].is_floating_point() or known["prediction"].ndim > 1:
        raise ValueError(
            "a confusion matrix needs a flcog.Classifier, and a test set with one class for each sample: leave it out"
        )
    classes = known["probability"].shape[1]
    matrix = multiclass_confusion_matrix(known["prediction"], known["target"], classes, normalize="true")
    size = 1.5 + 0.42 * min(classes, 24)
    figure = Picture(figsize=(size, size), layout="constrained")
    names = list(class_names or map(str, range(classes)))
    plot_confusion_matrix((100 * matrix).round().int(), ax=figure.subplots(), add_text=classes <= 24, labels=names, cmap="Blues")
    return figure


def partition_figure(federation: Federation, max_clients: int = 200, max_classes: int = 100) -> Figure:
    """How many training samples of each class each client holds: clients across, classes up, and the totals of both along the edges.

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
