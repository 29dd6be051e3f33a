"""The findings of a comparison in tables: differences between rows, and the paper's figures beside ours."""

from collections.abc import Mapping, Sequence

from flcog.commands.compare.paired import Estimate
from flcog.commands.compare.plan import Summary, Table
from flcog.commands.compare.published import Figure, Quantity
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import number
from flcog.commands.compare.table import figure_text
from flcog.commands.compare.verdicts import Verdict, verdicts
from flcog.core.text import markdown

SUMMARIES: Mapping[Summary, str] = {
    "best": "best evaluation",
    "last": "last evaluation",
    "mean": "mean of the last evaluations",
    "val": "score at the best validation",
}

FIGURES: Mapping[Quantity, str] = {
    "score": "score",
    "gain": "gain",
    "rounds": "rounds to the target",
    "seconds": "total time",
    "bytes": "bytes sent in all",
    "saved": "bytes saved",
}


def compared(table: Table) -> str:
    """The score of a run that is compared: "best evaluation", or "best evaluation (last evaluation for training)"."""
    own: dict[Summary, list[str]] = {}
    for column, part in table.columns.items():
        if part.summary is not None and part.summary != table.summary:
            own.setdefault(part.summary, []).append(column)
    others = "; ".join(f"{SUMMARIES[summary]} for {' and '.join(columns)}" for summary, columns in own.items())
    return SUMMARIES[table.summary] + (f" ({others})" if others else "")


def percent(confidence: float) -> str:
    return f"{100 * confidence:g} %"


def _interval_text(found: Estimate, decimals: int) -> str:
    """The interval, such as "72.10 to 74.04", or the reason for its absence."""
    if found.count == 1:
        return "one seed: no interval"
    if not found.has_interval:
        return f"the same with all {found.count} seeds: no interval"
    return f"{number(found.low, decimals)} to {number(found.high, decimals)}"


def _p_text(p: float) -> str:
    return "" if p != p else f"{p:.3f}" if p >= 0.001 else "< 0.001"


def difference_table(filled: ResultTable) -> str:
    """A table of the differences between rows. Empty if nothing can be compared yet."""
    confidence = percent(filled.table.confidence)
    header = ["", "setting", "against", "seeds", "difference", f"{confidence} interval", "p", "p (Holm)"]
    rows: list[list[str | int]] = []
    for column in filled.columns:
        for row, comparison in filled.comparisons(column).items():
            found, places = comparison.difference, filled.decimals[column]
            texts = [_signed(found.mean, places), _interval_text(found, places), _p_text(found.p), _p_text(comparison.p_holm)]
            rows.append([row, column, comparison.against, found.count, *texts])
    return _table(header, rows)


def paper_table(filled: ResultTable) -> str:
    """A table of our figures beside the paper's. Empty without published figures of rows that were run."""
    header = ["", "setting", "figure", "ours", "seeds", "published", "95 % interval of the difference", "width", "verdict"]
    return _table(
        header,
        [
            _paper_row(verdict, filled.decimals[verdict.column])
            for verdict in verdicts(filled)
            if verdict.ours is None or verdict.ours.count
        ],
    )


def _paper_row(verdict: Verdict, decimals: int) -> list[str | int]:
    ours, quantity, interval = verdict.ours, verdict.quantity, verdict.interval
    mean = verdict.text if ours is None else figure_text(Figure(ours.mean), quantity, decimals)
    between = width = ""
    if interval is not None and quantity == "rounds":
        between, width = f"{interval[0]:.2f} to {interval[1]:.2f} times", f"{interval[1] / interval[0]:.2f} times"
    elif interval is not None:
        between = f"{_signed(interval[0], decimals)} to {_signed(interval[1], decimals)}"
        width = number(interval[1] - interval[0], decimals)
    count = "" if ours is None else ours.count
    published = figure_text(verdict.published, quantity, decimals)
    return [verdict.row, verdict.column, FIGURES[quantity], mean, count, published, between, width, verdict.shown]


def _signed(value: float, decimals: int) -> str:
    return f"{value:+.{decimals}f}"


def _table(header: list[str], rows: Sequence[Sequence[str | int]]) -> str:
    """A table in Markdown without its empty columns."""
    if not rows:
        return ""
    kept = [place for place in range(len(header)) if any(row[place] != "" for row in rows)]
    return markdown([header[place] for place in kept], [[row[place] for place in kept] for row in rows])
