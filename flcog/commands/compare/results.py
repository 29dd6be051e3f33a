"""The results of a comparison's runs: scores, rounds to targets, time and bytes."""

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from flcog.commands.compare.facts import Facts, History
from flcog.commands.compare.plan import Cell, Summary, joined
from flcog.commands.compare.targets import target_name, targets_of
from flcog.core.monitor import Metric, is_share, lower_is_better, main_metric, mode_of
from flcog.core.waiting import DISTURBED


@dataclass(frozen=True)
class Result:
    """The result of one run.

    Args:
        row, column, seed: its cell.
        finished: whether all rounds are done, or the run has diverged.
        rounds: the number of finished rounds.
        metric: the compared column; None if it was never evaluated.
        scores: the best, the last, the mean of the last evaluations, and, with a validation set, the score in its best round. A run that
            has diverged has its last score in all of them.
        facts: its costs and its origin.
        averaged: the number of evaluations in the mean.
        deviation: their standard deviation; NaN for one evaluation.
        until: the last round that counts for its scores and targets; None for all.
        targets: for each target that it reached, such as ``accuracy_0.8``, the rounds and the bytes until then.
        asked: the names of all its targets.
        simulated: the simulated seconds until each of these targets, in runs with simulated time.
        diverged: whether its model became NaN or infinite.
        history: its rows.
    """

    row: str
    column: str
    seed: int
    finished: bool
    rounds: int
    metric: str | None
    scores: Mapping[Summary, float]
    facts: Facts = field(default_factory=Facts)
    averaged: int = 0
    deviation: float = math.nan
    until: int | None = None
    targets: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    asked: Sequence[str] = ()
    simulated: Mapping[str, float] = field(default_factory=dict)
    diverged: bool = False
    history: History = field(default=(), repr=False, compare=False)

    @property
    def disturbed(self) -> bool:
        """Whether its times are too long, because other programs used the same cores."""
        return self.facts.waiting > DISTURBED

    @property
    def spent(self) -> tuple[float, float]:
        """The rounds and bytes that count. A target that it missed needs more."""
        if self.until is None or self.until >= self.rounds:
            return self.rounds, self.facts.total_bytes
        sent = [row["comm/total_bytes"] for row in self.history if row["round"] <= self.until and "comm/total_bytes" in row]
        return self.until, sent[-1] if sent else math.nan

    @property
    def name(self) -> str:
        return joined(self.row, self.column, f"seed {self.seed}")


def result_of(cell: Cell, history: History, facts: Facts, last: int, finished: bool) -> Result:
    """The result of a cell.

    Args:
        cell: the cell.
        history: the rows of its run, or the rows of its evaluations.
        facts: the run's costs and origin.
        last: the number of evaluations in the mean.
        finished: whether the run has ended.
    """
    compared = compared_metric(cell.metric, history)
    seen = [row for row in history if cell.until is None or row["round"] <= cell.until]
    values = [row[compared] for row in seen if compared in row] if compared else []
    tail, diverged = values[-last:], facts.diverged or _ends_badly(seen, compared)
    scores = _scores(compared, values, tail, seen) if compared and values else {}
    return Result(
        cell.row,
        cell.column,
        cell.seed,
        finished=finished,
        rounds=facts.rounds,
        metric=compared if values else None,
        scores=dict.fromkeys(scores, scores["last"]) if diverged and scores else scores,
        facts=facts,
        averaged=len(tail),
        deviation=standard_deviation(tail),
        until=cell.until,
        targets={name: (rounds, _bytes_to(name, row)) for name, rounds, row in _logged(seen, "rounds")}
        | _crossing(cell, compared, seen),
        asked=targets_of(cell, compared, history),
        simulated={name: seconds for name, seconds, _ in _logged(seen, "simulated")},
        diverged=diverged,
        history=history,
    )


def _ends_badly(history: History, metric: str | None) -> bool:
    """Whether the last evaluation has a score or a loss that is no finite number."""
    if metric is None:
        return False
    last: Mapping[str, float] = next((row for row in reversed(history) if metric in row), {})
    return any(not math.isfinite(last[name]) for name in (metric, "test/loss", "val/loss", "train/loss") if name in last)


def compared_metric(metric: str | None, history: History) -> str | None:
    """The compared column: ``metric``, or else the main metric of the last evaluation."""
    return metric or next((name for row in reversed(history) if (name := main_metric(row))), None)


def _scores(metric: str, values: Sequence[float], tail: Sequence[float], history: History) -> Mapping[Summary, float]:
    scores: dict[Summary, float] = {"best": _best(metric, values), "last": values[-1], "mean": statistics.fmean(tail)}
    chooser = chooser_of(metric, history)
    if chooser is not None:
        rows = [row for row in reversed(history) if metric in row and not math.isnan(row.get(chooser, math.nan))]
        chosen = {row[chooser]: row[metric] for row in rows}
        if chosen:
            scores["val"] = chosen[_best(chooser, list(chosen))]
    return scores


def chooser_of(metric: str, history: History) -> str | None:
    """The validation metric that chooses a round: the same metric as the compared one if there is one, or the main one."""
    twin = on_validation(metric)
    if any(twin in row for row in history):
        return twin if twin != metric else None
    found = next((name for row in reversed(history) if (name := main_metric(row, selecting=True))), None)
    return found if found and found.startswith("val/") and found != metric else None


def on_validation(metric: str) -> Metric:
    """The same metric on the validation set, such as ``val/accuracy``."""
    return Metric(f"val/{metric.removeprefix('test/')}", mode_of(metric))


def _best(metric: str, values: Sequence[float]) -> float:
    """The best value. NaN counts only if all values are NaN."""
    numbers = [value for value in values if not math.isnan(value)]
    return math.nan if not numbers else min(numbers) if lower_is_better(metric) else max(numbers)


def _logged(history: History, what: str) -> Iterator[tuple[str, float, Mapping[str, float]]]:
    """What ``RoundsToTarget`` logged in columns such as ``to_accuracy_0.8/rounds``: the target, the value, and its row."""
    for row in history:
        for name, value in row.items():
            if name.startswith("to_") and name.endswith(f"/{what}"):
                yield name.removeprefix("to_").removesuffix(f"/{what}"), value, row


def _bytes_to(target: str, row: Mapping[str, float]) -> float:
    """The bytes in both directions until a target. NaN in private runs, which withhold them."""
    return row.get(f"to_{target}/up_bytes", math.nan) + row.get(f"to_{target}/down_bytes", math.nan)


def _crossing(cell: Cell, metric: str | None, history: History) -> dict[str, tuple[float, float]]:
    """The rounds and bytes at which the curve crosses the column's target, as McMahan et al. (2017) read them.

    The curve is made monotone (each point is the best so far) and interpolated between evaluations.
    """
    if cell.target is None or metric is None:
        return {}
    sign = -1 if lower_is_better(metric) else 1
    before: tuple[float, float, float] | None = None
    for row in history:
        if metric not in row or math.isnan(row[metric]):
            continue
        now = (sign * row[metric], row["round"], row.get("comm/total_bytes", math.nan))
        if now[0] >= sign * cell.target:
            before = before or now
            rise = now[0] - before[0]
            share = (sign * cell.target - before[0]) / rise if rise and math.isfinite(rise) else 1.0
            rounds, sent = (before[i] + share * (now[i] - before[i]) for i in (1, 2))
            return {target_name(metric, cell.target): (rounds, sent)}
        # A lower point later in the run becomes the best so far, at its own round.
        before = (max(now[0], before[0]) if before else now[0], now[1], now[2])
    return {}


def percent_scale(results: Sequence[Result]) -> float:
    """100 if the runs' metric is a share, which is shown in percent, else 1."""
    metric = next((result.metric for result in results if result.metric), None)
    return 100.0 if metric and is_share(metric, [value for result in results for value in result.scores.values()]) else 1.0


def standard_deviation(values: Sequence[float]) -> float:
    """The sample's standard deviation; NaN for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def decimals(results: Sequence[Result]) -> int:
    """The decimal places of the runs' scores in a table: four for most losses, two for per cent and for large scores."""
    sizes = [abs(value) for result in results for value in result.scores.values() if math.isfinite(value)]
    return 4 if sizes and percent_scale(results) == 1 and np.median(sizes) < 10 else 2


def number(value: float, decimals: int = 2) -> str:
    """Format a score for a table."""
    return f"{value:.{decimals}f}" if abs(value) < 1e4 else f"{value:.4g}"


def span(counts: Collection[int]) -> str:
    """Format counts: "5", or "2 to 5"."""
    return f"{min(counts)}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"


def check_metric(results: Sequence[Result], cells: Sequence[Cell]) -> None:
    """Refuse a metric that no finished run of its columns has logged."""
    for metric in dict.fromkeys(cell.metric for cell in cells if cell.metric):
        columns = {cell.column for cell in cells if cell.metric == metric}
        found = [result for result in results if result.column in columns]
        if any(result.finished and result.rounds for result in found) and not any(result.metric for result in found):
            logged = sorted({name for result in found if result.finished for row in result.history for name in row})
            raise ValueError(
                f"no run logged the table's metric {metric}, but {', '.join(logged)}: correct `metric` and give the same command again; "
                "nothing is run twice"
            )
