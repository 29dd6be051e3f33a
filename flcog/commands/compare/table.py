"""The filled table of a comparison for people: scores over seeds beside the paper's, rounds to targets, time and bytes sent."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Literal

from flcog.commands.compare.paired import estimate
from flcog.commands.compare.plan import Summary
from flcog.commands.compare.published import Figure, Quantity
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import Result, number, span, standard_deviation
from flcog.commands.compare.savings import saving
from flcog.core.speed import comparable
from flcog.core.text import human, seconds

Spread = Literal["std", "sem", "interval"]
"""The meaning of ±: the standard deviation over seeds, the standard error of the mean, or half of the mean's interval."""

Column = tuple[str, list[str]]
"""A column's header, and its text in each row."""

Grid = tuple[list[str], list[list[str]]]
"""Header and rows."""


def summarise(filled: ResultTable, spread: Spread = "std") -> Grid:
    """The main table: all scores of one setting, or the compared scores of several settings beside the paper's; then the cost."""
    several = len(filled.columns) > 1
    scores = _overview(filled, spread) if several else _one_setting(filled, filled.columns[0], spread)
    return _grid(filled, [*scores, *_cost_columns(filled, " (all)" if several else "")])


def in_setting(filled: ResultTable, column: str, spread: Spread = "std") -> Grid:
    """All scores of one setting, rounds to targets, and the paper's figures."""
    return _grid(filled, _one_setting(filled, column, spread))


def _grid(filled: ResultTable, columns: Sequence[Column]) -> Grid:
    kept = [("", list(filled.table.rows)), *(column for column in columns if column[0] != IN_ALL or any(column[1]))]
    return [name for name, _ in kept], [list(row) for row in zip(*(texts for _, texts in kept), strict=True)]


def _overview(filled: ResultTable, spread: Spread) -> list[Column]:
    """The compared score in each setting, with the paper's in brackets."""

    def text(row: str, column: str) -> str:
        figure = filled.table.published.get(row, {}).get(column, {}).get("score")
        paper = f"[{figure_text(figure, 'score', filled.decimals[column])}]" if figure else ""
        return f"{score_text(filled, row, column, filled.table.summary_of(column), spread)} {paper}".strip()

    return [(column, [text(row, column) for row in filled.table.rows]) for column in filled.columns]


def _one_setting(filled: ResultTable, column: str, spread: Spread) -> list[Column]:
    return [
        *_score_columns(filled, column, spread),
        *_target_columns(filled, column),
        *_saving_columns(filled, column),
        *_published_columns(filled, column),
    ]


IN_ALL = "sent in all"


def _cost_columns(filled: ResultTable, settings: str) -> list[Column]:
    rows = filled.table.rows
    return [
        (f"total time{settings}", [_time(filled, row, "seconds", "shared_rounds") for row in rows]),
        ("time of an acting round", [_time(filled, row, "acting_seconds", "shared_acting_rounds") for row in rows]),
        ("sent up", [_sent(_runs(filled, row), "up_bytes") for row in rows]),
        (IN_ALL, [_sent(_runs(filled, row), "total_bytes") for row in rows]),
    ]


def _score_columns(filled: ResultTable, column: str, spread: Spread) -> list[Column]:
    results = filled.in_column(column)
    chosen = any("val" in result.scores for result in results)
    on_test = any((result.metric or "").startswith("test/") for result in results)
    named: list[tuple[str, Summary]] = [("best on test" if chosen and on_test else "best", "best")]
    named += [("at best val", "val")] if chosen else []
    averaged = [result.averaged for result in results if result.averaged] or [filled.table.last]
    named += [("last", "last"), (f"mean of last {span(averaged)}", "mean")]
    return [(name, [score_text(filled, row, column, summary, spread) for row in filled.table.rows]) for name, summary in named]


def score_text(filled: ResultTable, row: str, column: str, summary: Summary, spread: Spread) -> str:
    """A score over seeds, with ± for several seeds, and with their number if seeds are missing."""
    values = list(filled.scores(row, column, summary).values())
    if not values:
        return diverged_text(filled, row, column).strip()
    deviation = spread_of(filled, row, column, summary, spread)
    places = filled.decimals[column]
    text = number(statistics.fmean(values), places) + ("" if math.isnan(deviation) else f" ± {deviation:.{places}f}")
    text += diverged_text(filled, row, column)
    return text if len(values) == len(filled.table.seeds) else f"{text} (n = {len(values)})"


def diverged_text(filled: ResultTable, row: str, column: str) -> str:
    """ " (1 of 3 diverged)"; empty if no seed has diverged."""
    count = filled.diverged(row, column)
    return f" ({count} of {len(filled.of(row, column))} diverged)" if count else ""


def spread_of(filled: ResultTable, row: str, column: str, summary: Summary, spread: Spread) -> float:
    """The figure after ±: over the last evaluations with ``over_rounds``, else over seeds. NaN for none."""
    if summary == "mean" and filled.table.over_rounds:
        return filled.deviation(row, column)
    values = list(filled.scores(row, column, summary).values())
    if len(values) < 2:
        return math.nan
    if spread == "interval":
        return estimate(values, filled.table.confidence).half
    return standard_deviation(values) / (math.sqrt(len(values)) if spread == "sem" else 1)


def _target_columns(filled: ResultTable, column: str) -> list[Column]:
    targets = sorted({target for result in filled.in_column(column) for target in (*result.targets, *result.asked)})
    runs = [filled.of(row, column) for row in filled.table.rows]
    return [(f"rounds to {target}", [_rounds_to(target, results) for results in runs]) for target in targets]


def _rounds_to(target: str, results: Sequence[Result]) -> str:
    """The mean rounds over seeds, bytes in both directions, and simulated seconds if time was simulated.

    If a seed missed the target, the number of rounds that did not suffice.
    """
    if not results:
        return ""
    reached = [result.targets[target] for result in results if target in result.targets]
    if len(reached) < len(results):
        most = max(result.spent[0] for result in results if target not in result.targets)
        return f"> {most} ({len(reached)} of {len(results)} seeds reached it)"
    rounds, sent = (statistics.fmean(values) for values in zip(*reached, strict=True))
    simulated = [result.simulated[target] for result in results if target in result.simulated]
    costs = [human(round(sent))] if math.isfinite(sent) else []
    costs += [f"{statistics.fmean(simulated):,.0f} s simulated"] if len(simulated) == len(results) else []
    return _rounds(rounds) + (f" ({', '.join(costs)})" if costs else "")


def _rounds(mean: float) -> str:
    """A mean of whole numbers: "8" or "21.7"."""
    return f"{mean:.1f}".removesuffix(".0")


def _saving_columns(filled: ResultTable, column: str) -> list[Column]:
    """The savings of rows until they reach the target, compared with other rows. Empty if there are none."""
    texts = [found.text if (found := saving(filled, row, column)) else "" for row in filled.table.rows]
    return [("rounds and bytes saved", texts)] if any(texts) else []


def _published_columns(filled: ResultTable, column: str) -> list[Column]:
    cells = [filled.table.published.get(row, {}).get(column, {}) for row in filled.table.rows]
    return [
        (header, [figure_text(cell[quantity], quantity, filled.decimals[column]) if quantity in cell else "" for cell in cells])
        for quantity, header in _PUBLISHED.items()
        if any(quantity in cell for cell in cells)
    ]


_PUBLISHED: Mapping[Quantity, str] = {
    "score": "published",
    "gain": "published gain",
    "rounds": "published rounds",
    "seconds": "published time",
    "bytes": "published bytes",
    "saved": "published saving",
}


def figure_text(figure: Figure, quantity: Quantity, decimals: int = 2) -> str:
    """Format a paper's figure: "73.07 ± 0.08", "> 100", "983 s ± 100 s", "1.2 GiB", "> 95.6 %", "+14.00 to +20.00"."""
    writers: Mapping[Quantity, Callable[[float], str]] = {
        "score": lambda value: number(value, decimals),
        "gain": lambda value: f"{value:+.{decimals}f}",
        "rounds": _rounds,
        "seconds": seconds,
        "bytes": human,
        "saved": lambda value: f"{value:.1f} %",
    }
    write = writers[quantity]
    if figure.within:
        return f"{write(figure.value - figure.within)} to {write(figure.value + figure.within)}"
    spread = "" if figure.spread is None else f" ± {write(figure.spread).removeprefix('+')}"
    return ("> " if figure.beyond else "") + write(figure.value) + spread


def _runs(filled: ResultTable, row: str) -> list[Result]:
    return [result for column in filled.table.columns for result in filled.of(row, column)]


SHARED = " *"
"""The mark of a time that includes rounds of another run."""

DISTURBED = " †"
"""The mark of a time that is too long, because other programs used the same cores."""


def _time(filled: ResultTable, row: str, name: str, shared: str) -> str:
    """The mean of a fact over runs, and its ratio to the first row's in common settings and seeds."""
    first = next(iter(filled.table.rows))
    of, shared_of = attrgetter(f"facts.{name}"), attrgetter(f"facts.{shared}")
    runs, others = ({(run.column, run.seed): run for run in _runs(filled, arm) if of(run) > 0} for arm in (row, first))
    if not runs:
        return ""
    common = [key for key in runs if key in others]
    equally_fast = common and all(have_comparable_times(runs[key], others[key]) for key in common)
    ratio = f"{sum(of(runs[key]) for key in common) / sum(of(others[key]) for key in common):.2f} " if equally_fast else ""
    marks = SHARED * any(map(shared_of, runs.values())) + DISTURBED * any(run.disturbed for run in runs.values())
    return f"{ratio}({seconds(statistics.fmean(map(of, runs.values())))}){marks}"


def have_comparable_times(ours: Result, theirs: Result) -> bool:
    """Whether the machine was equally fast during two runs, and no other program took their cores. Without measurements: no."""
    if ours is theirs:
        return not ours.disturbed
    same = ours.facts.machine == theirs.facts.machine and comparable(ours.facts.calibration, theirs.facts.calibration)
    return same and not ours.disturbed and not theirs.disturbed


def _sent(runs: Sequence[Result], name: str) -> str:
    found = [sent for run in runs if not math.isnan(sent := getattr(run.facts, name))]
    return human(round(statistics.fmean(found))) if found else ""
