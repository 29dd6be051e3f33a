"""The rows of ``metrics.csv`` as a picture: drawn by ``trainer.plot()``."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from flcog.core.monitor import is_share, main_metric

SHARES = ("accuracy", "acc", "AP", "F1")
"""Last words of scores that are shown as per cent, unless the module logs them in percent."""


class HistoryFigure(Figure):
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
    figure = HistoryFigure(figsize=(4.6 * len(charts), 3.2), layout="constrained")
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
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 2} if len(sides) > 1 else {}
        sides[-1].legend(handles=lines, frameon=False, **above)
        sides[-1].spines["top"].set_visible(False)
    return figure


def framed(axes: Axes, x: str, y: str = "") -> None:
    """Label the axes, and leave out the lines at the top and at the right."""
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
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
