"""The rows of ``metrics.csv`` as a picture: drawn by ``trainer.plot()``."""

import io
from collections.abc import Mapping, Sequence

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
    """Draw columns by round. Columns of the same measure share a chart."""
    known = list(dict.fromkeys(name for row in rows for name in row if name != "round"))
    unknown = [name for name in columns if name not in known]
    if unknown or not known:
        raise ValueError(
            f"no column {unknown[0]!r} in this run; it has {', '.join(known)}" if known else "this run has no rows yet: fit it"
        )
    chosen = list(columns) or _usual(rows, known)
    charts: dict[str, list[str]] = {}
    for name in chosen:
        charts.setdefault(name.split("/")[-1], []).append(name)
    figure = HistoryFigure(figsize=(4.6 * len(charts), 3.2), layout="constrained")
    for axes, (measure, names) in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts.items(), strict=True):
        for name in names:
            points = [(row["round"], row[name]) for row in rows if name in row]
            axes.plot([round for round, _ in points], [value for _, value in points], marker="." * (len(points) < 40), label=name)
        axes.set(xlabel="round", ylabel=measure)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if measure.endswith(SHARES) and is_share(measure, [row[name] for row in rows for name in names if name in row]):
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    return figure


def _usual(rows: Sequence[Mapping[str, float]], known: Sequence[str]) -> list[str]:
    main = next(filter(None, map(main_metric, reversed(rows))), None)
    score = [] if main is None else [f"{split}/{main.split('/')[-1]}" for split in ("val", "test")]
    usual = [name for name in dict.fromkeys([*score, "val/loss", "test/loss", "train/loss"]) if name in known]
    return usual or list(known[:1])
