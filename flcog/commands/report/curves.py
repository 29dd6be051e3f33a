"""The report's curves: scores and losses, clients' spread, bytes, and whatever else a run has logged."""

import itertools
from collections.abc import Iterator, Sequence

from flcog.commands.report.charts import Axis, Series, line_chart
from flcog.commands.report.overview import axis_of
from flcog.commands.report.run_files import RunFiles

ROUND = Axis("round")
SPREAD = ("_mean", "_std", "_q10", "_q50", "_q90", "_worst_decile")


def scores(runs: Sequence[RunFiles], names: Sequence[str]) -> str:
    """The main score and the losses, all runs in one picture each."""
    mains = dict.fromkeys(name for run in runs for name in (run.main, run.chooser) if name is not None)
    losses = [f"{split}/loss" for split in ("test", "val") if f"{split}/loss" not in mains]
    return grid([by_round(runs, names, column) for column in [*mains, *losses, "train/loss"]])


def by_round(runs: Sequence[RunFiles], names: Sequence[str], column: str, title: str = "") -> str:
    """A column by round, a line for each run."""
    series = [Series(names[i], run.points(column), number=i) for i, run in enumerate(runs)]
    return line_chart(title or column, ROUND, axis_of(column), series)


def clients(runs: Sequence[RunFiles], names: Sequence[str]) -> str:
    """How the clients' own scores are spread: the middle client, and the band of all but the best and the worst tenth."""
    charts = [
        line_chart(
            f"{column}: {name}", ROUND, axis_of(column), list(_spread(run, column, number)), "band: 10 % to 90 % of the clients"
        )
        for column in _spread_columns(runs)
        for number, (run, name) in enumerate(zip(runs, names, strict=True))
    ]
    return grid(charts)


def _spread_columns(runs: Sequence[RunFiles]) -> list[str]:
    """What is measured on every client: ``test/client_accuracy`` and its like."""
    columns = dict.fromkeys(name for run in runs for row in run.rows for name in row)
    return [name.removesuffix("_q50") for name in columns if name.endswith("_q50")]


def _spread(run: RunFiles, column: str, number: int) -> Iterator[Series]:
    band = [
        (row["round"], row[f"{column}_q10"], row[f"{column}_q90"])
        for row in run.rows
        if f"{column}_q10" in row and f"{column}_q90" in row
    ]
    yield Series("middle client", run.points(f"{column}_q50"), band, number)
    yield Series("mean of the worst tenth", run.points(f"{column}_worst_decile"), number=number + 1)


def bytes_sent(runs: Sequence[RunFiles], names: Sequence[str]) -> str:
    """Bytes in all by round, and the score for the bytes that the clients had sent by then."""
    up, down = ([_running_sum(run, f"comm/{way}_bytes") for run in runs] for way in ("up", "down"))
    amount = Axis("sent in all", "bytes")
    charts = [
        line_chart(f"Sent {way}", ROUND, amount, [Series(names[i], sums, number=i) for i, sums in enumerate(lines)], what)
        for way, lines, what in (("up", up, "from clients to the server"), ("down", down, "from the server to clients"))
    ]
    by_score: dict[str, list[Series]] = {}
    for i, (run, sums) in enumerate(zip(runs, up, strict=True)):
        if run.main is not None:
            sent = dict(sums)
            points = [(sent[round], value) for round, value in run.points(run.main) if round in sent]
            by_score.setdefault(run.main, []).append(Series(names[i], points, number=i))
    charts += [
        line_chart(f"{score} for what was sent up", Axis("sent up", "bytes"), axis_of(score), series)
        for score, series in by_score.items()
    ]
    return grid(charts)


def _running_sum(run: RunFiles, column: str) -> list[tuple[float, float]]:
    points = run.points(column)
    sums = itertools.accumulate(value for _, value in points)
    return [(round, total) for (round, _), total in zip(points, sums, strict=True)]


def others(runs: Sequence[RunFiles], names: Sequence[str]) -> str:
    """Every further column: times, drift, and what methods log."""
    columns = dict.fromkeys(name for run in runs for row in run.rows for name in row)
    mains = {name for run in runs for name in (run.main, run.chooser)}
    spread = tuple(f"{column}{end}" for column in _spread_columns(runs) for end in SPREAD)
    left = [
        name
        for name in columns
        if name not in mains
        and name not in spread
        and name != "round"
        and not name.endswith("/loss")
        and not name.startswith("comm/")
    ]
    return grid([by_round(runs, names, name) for name in left], small=True)


def grid(charts: Sequence[str], small: bool = False) -> str:
    """Charts side by side, as many as there is room for; nothing where all are empty."""
    drawn = "".join(charts)
    return f'<div class="charts{" small" * small}">{drawn}</div>' if drawn else ""
