"""The report's curves: scores and losses, clients' spread, bytes, and everything else that the runs have logged."""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flcog.commands.report.charts import Axis, Point, Series, legend, line_chart
from flcog.commands.report.groups import Group
from flcog.commands.report.markup import grid, note, on_demand
from flcog.commands.report.overview import SPREAD, axis_of
from flcog.commands.report.run_files import RunFiles

ROUND = Axis("round")
MOST_BANDS = 3
"""Bands of more groups than these are hidden until the reader points at a name."""


def scores(groups: Sequence[Group]) -> str:
    """The main score and the losses, with the legend that holds for all charts of the page."""
    mains = dict.fromkeys(name for run in _runs(groups) for name in (run.main, run.chooser) if name is not None)
    losses = [f"{split}/loss" for split in ("test", "val") if f"{split}/loss" not in mains]
    charts = grid([by_round(groups, column) for column in [*mains, *losses, "train/loss"]])
    if len(groups) == 1 or not charts:
        return charts
    explained = "Lines are means over seeds. Bands reach from the lowest seed to the highest."
    explained += " Point at a name to see its bands." * _quiet(groups)
    names = legend([Series(group.name, [], style=group.style) for group in groups], "shared")
    return note(explained) * any(len(group.runs) > 1 for group in groups) + names + charts


def by_round(groups: Sequence[Group], column: str) -> str:
    """A column by round, a line for each group."""
    return line_chart(column, ROUND, axis_of(column, groups), _lines(groups, column), keys=False)


def _lines(groups: Sequence[Group], column: str) -> list[Series]:
    return [replace(group.column(column), quiet=_quiet(groups)) for group in groups]


def _quiet(groups: Sequence[Group]) -> bool:
    """Whether there are too many bands to draw, because they would cover each other."""
    return sum(group.style is not None for group in groups) > MOST_BANDS


def clients(groups: Sequence[Group]) -> str:
    """How the clients' own scores are spread: of one group in one chart, of several in two that compare them."""
    charts = []
    for column in _spread_columns(groups):
        if len(groups) == 1:
            band = "Band: from 10 % to 90 % of the clients."
            charts.append(line_chart(column, ROUND, axis_of(column, groups), list(_spread(groups[0], column)), band))
            continue
        for end, words in (("_q50", "middle client"), ("_worst_decile", "mean of the worst tenth")):
            series = _lines(groups, f"{column}{end}")
            charts.append(line_chart(f"{column}: {words}", ROUND, axis_of(column, groups), series, keys=False))
    return grid(charts)


def _spread_columns(groups: Sequence[Group]) -> list[str]:
    """The columns that are measured on every client, such as ``test/client_accuracy``."""
    return [name.removesuffix("_q50") for name in _columns(groups) if name.endswith("_q50")]


def _spread(group: Group, column: str) -> Iterator[Series]:
    low, middle, high = (group.column(f"{column}{end}").points for end in ("_q10", "_q50", "_q90"))
    ends = dict(high)
    band = [(px, bottom, ends[px]) for px, bottom in low if px in ends]
    yield Series("middle client", middle, band, 0)
    yield Series("mean of the worst tenth", group.column(f"{column}_worst_decile").points, (), 1)


def bytes_sent(groups: Sequence[Group]) -> str:
    """Bytes in all by round, and the score for the bytes that the clients had sent by then."""
    amount = Axis("sent in all", "bytes")
    charts = []
    for way, what in (("up", "From clients to the server."), ("down", "From the server to clients.")):
        sums = ([_running_sum(run, f"comm/{way}_bytes") for run in group.runs] for group in groups)
        series = [replace(group.series(lines), band=()) for group, lines in zip(groups, sums, strict=True)]
        charts.append(line_chart(f"Sent {way}", ROUND, amount, series, what, keys=False))
    for score in dict.fromkeys(group.runs[0].main for group in groups):
        if score is not None:
            series = [_score_for_bytes(group, score) for group in groups if group.runs[0].main == score]
            charts.append(
                line_chart(f"{score} by bytes sent up", Axis("sent up", "bytes"), axis_of(score, groups), series, keys=False)
            )
    return grid(charts)


def _score_for_bytes(group: Group, score: str) -> Series:
    """The mean score of each round over the mean of the bytes until then."""
    sent: dict[float, list[float]] = {}
    for round, total in (point for run in group.runs for point in _running_sum(run, "comm/up_bytes")):
        sent.setdefault(round, []).append(total)
    points = [(statistics.fmean(sent[round]), value) for round, value in group.column(score).points if round in sent]
    return Series(group.name, points, (), group.style)


def _running_sum(run: RunFiles, column: str) -> list[Point]:
    points = run.points(column)
    sums = itertools.accumulate(value for _, value in points)
    return [(round, total) for (round, _), total in zip(points, sums, strict=True)]


def others(groups: Sequence[Group]) -> str:
    """Every further column: times, drift, and columns of methods. Closed until the reader opens it if there are several groups."""
    shown = {name for run in _runs(groups) for name in (run.main, run.chooser)} | {"round"}
    shown |= {f"{column}{end}" for column in _spread_columns(groups) for end in SPREAD}
    left = [
        name for name in _columns(groups) if name not in shown and not name.endswith("/loss") and not name.startswith("comm/")
    ]
    charts = grid([by_round(groups, name) for name in left], small=True)
    if len(groups) == 1 or not charts:
        return charts
    return on_demand(f"{len(left)} charts: {', '.join(left[:4])} ...", charts)


def _runs(groups: Sequence[Group]) -> list[RunFiles]:
    return [run for group in groups for run in group.runs]


def _columns(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(name for run in _runs(groups) for row in run.rows for name in row))
