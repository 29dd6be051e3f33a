"""The results of a comparison's runs: scores, rounds to targets, time and bytes."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flcog.commands.compare.plan import Cell, Summary
from flcog.commands.compare.settings_of_runs import added_arguments, is_outdated
from flcog.core.monitor import lower_is_better, main_metric
from flcog.core.waiting import DISTURBED, share_of_waiting

WAYS = ("up", "down")
History = Sequence[Mapping[str, float]]
"""The rows of a ``metrics.csv``."""


@dataclass(frozen=True)
class Result:
    """The result of one run.

    Args:
        row, column, seed: its cell.
        finished: whether all rounds are done.
        rounds: the number of finished rounds.
        metric: the compared column; None if it was never evaluated.
        scores: the best, the last, the mean of the last evaluations, and, with a validation set, the score in its best round.
        averaged: the number of evaluations in this mean.
        deviation: their standard deviation; NaN for one evaluation.
        targets: for each target of ``RoundsToTarget``, such as ``accuracy_0.8``, the rounds and the bytes until it was reached.
        simulated: the simulated seconds until each of these targets, in runs with simulated time.
        seconds: the time of all rounds, without evaluations.
        acting_seconds: the mean time of the rounds with all of the arm's methods.
        shared_rounds, shared_acting_rounds: the numbers of rounds, and of rounds with all methods, that another run trained and timed.
        trunk: the arm of that run, or empty.
        up_bytes: bytes from clients to server, including exchanges before the first round.
        total_bytes: bytes in both directions.
        waiting: the share of the rounds' time that the run's threads waited for a core that other programs used.
        commit: the commit of the code.
        arguments: options of the command that are not in the table.
        outdated: whether the table has changed since the run.
    """

    row: str
    column: str
    seed: int
    finished: bool
    rounds: int
    metric: str | None
    scores: Mapping[Summary, float]
    averaged: int = 0
    deviation: float = math.nan
    targets: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    simulated: Mapping[str, float] = field(default_factory=dict)
    seconds: float = math.nan
    acting_seconds: float = math.nan
    shared_rounds: int = 0
    shared_acting_rounds: int = 0
    trunk: str = ""
    up_bytes: float = math.nan
    total_bytes: float = math.nan
    waiting: float = 0.0
    commit: str = ""
    arguments: str = ""
    outdated: bool = False

    @property
    def disturbed(self) -> bool:
        """Whether its times are too long, because other programs used the same cores."""
        return self.waiting > DISTURBED

    @property
    def name(self) -> str:
        return " · ".join(part for part in (self.row, self.column, f"seed {self.seed}") if part)


def result_of(cell: Cell, metric: str | None, last: int) -> Result | None:
    """The result of a cell's run so far; None before the first round.

    Args:
        cell: the cell.
        metric: the compared column, or None for the run's main metric.
        last: the number of evaluations in the mean.
    """
    history = cell.history()
    if not history:
        return None
    about = cell.run.description if cell.run else {}
    compared = compared_metric(metric, history)
    seen = [row for row in history if cell.until is None or row["round"] <= cell.until]
    values = [row[compared] for row in seen if compared in row] if compared else []
    tail = values[-last:]
    times = {row["round"]: row["time/round"] for row in history if "time/round" in row}
    acting, (shared, trunk) = _acting_rounds(about), _branch(about)
    return Result(
        cell.row,
        cell.column,
        cell.seed,
        finished=cell.finished,
        rounds=int(history[-1]["round"]),
        metric=compared if values else None,
        scores=_scores(compared, values, tail, seen) if compared and values else {},
        averaged=len(tail),
        deviation=standard_deviation(tail),
        targets=_targets(history),
        simulated=_simulated(history),
        seconds=sum(times.values()),
        acting_seconds=_acting_seconds(times, acting),
        shared_rounds=shared,
        shared_acting_rounds=sum(acting[0] <= round <= min(acting[1], shared) for round in times),
        trunk=trunk,
        up_bytes=history[-1].get("comm/up_bytes_total", sum(row.get("comm/up_bytes", 0) for row in history)),
        total_bytes=history[-1].get("comm/total_bytes", math.nan),
        waiting=share_of_waiting(history),
        commit=str(about.get("git_commit") or ""),
        arguments=added_arguments(cell),
        outdated=is_outdated(cell),
    )


def compared_metric(metric: str | None, history: History) -> str | None:
    """The compared column: ``metric``, or else the main metric of the last evaluation."""
    return metric or next((name for row in reversed(history) if (name := main_metric(row))), None)


def _scores(metric: str, values: Sequence[float], tail: Sequence[float], history: History) -> Mapping[Summary, float]:
    scores: dict[Summary, float] = {"best": _best(metric, values), "last": values[-1], "mean": statistics.fmean(tail)}
    chooser = _chooser(metric, history)
    chosen = {
        row[chooser]: row[metric]
        for row in reversed(history)
        if chooser and row.get(chooser, math.nan) == row.get(chooser) and metric in row
    }
    return scores | ({"val": chosen[_best(chooser, list(chosen))]} if chooser and chosen else {})


def _chooser(metric: str, history: History) -> str | None:
    """The validation metric that chooses a round: the same metric as the compared one if there is one, or the main one."""
    twin = f"val/{metric.removeprefix('test/')}"
    if any(twin in row for row in history):
        return twin if twin != metric else None
    found = next((name for row in reversed(history) if (name := main_metric(row, selecting=True))), None)
    return found if found and found.startswith("val/") and found != metric else None


def _best(metric: str, values: Sequence[float]) -> float:
    """The best value. NaN counts only if all values are NaN."""
    numbers = [value for value in values if not math.isnan(value)]
    return math.nan if not numbers else min(numbers) if lower_is_better(metric) else max(numbers)


def _simulated(history: History) -> Mapping[str, float]:
    columns = ((name, value) for row in history for name, value in row.items())
    return {
        name.removeprefix("to_").removesuffix("/simulated"): value
        for name, value in columns
        if name.startswith("to_") and name.endswith("/simulated")
    }


def _targets(history: History) -> Mapping[str, tuple[float, float]]:
    """The targets that ``RoundsToTarget`` logged in columns such as ``to_accuracy_0.8/rounds``."""
    return {
        name.removeprefix("to_").removesuffix("/rounds"): (
            value,
            sum(row[name.replace("/rounds", f"/{way}_bytes")] for way in WAYS),
        )
        for row in history
        for name, value in row.items()
        if name.startswith("to_") and name.endswith("/rounds")
    }


def _acting_rounds(about: Mapping[str, Any]) -> tuple[float, float]:
    """The first and the last round in which all methods act. A run that does not name them counts with all rounds."""
    acting = about.get("acting_rounds")
    return (acting[0], acting[1]) if isinstance(acting, list) and len(acting) == 2 else (1, math.inf)


def _acting_seconds(times: Mapping[float, float], acting: tuple[float, float]) -> float:
    """The mean time of these rounds."""
    chosen = [seconds for round, seconds in times.items() if acting[0] <= round <= acting[1]]
    return statistics.fmean(chosen) if chosen else math.nan


def _branch(about: Mapping[str, Any]) -> tuple[int, str]:
    """The number of rounds from the run that it branched from, and the arm of that run; 0 and an empty text without one."""
    branch = about.get("branch")
    if not isinstance(branch, dict) or not isinstance(branch.get("round"), int):
        return 0, ""
    return branch["round"], Path(str(branch.get("run"))).parent.parent.name


def percent_scale(results: Sequence[Result]) -> float:
    """100 if the runs' metric is a share, which is shown in percent, else 1."""
    metric = next((result.metric for result in results if result.metric), None)
    if metric is None or lower_is_better(metric.removesuffix("_std")):  # the spread of a share is shown in percentage points
        return 1.0
    return 1.0 if any(abs(value) > 1 for result in results for value in result.scores.values()) else 100.0


def standard_deviation(values: Sequence[float]) -> float:
    """The sample's standard deviation; NaN for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def number(value: float) -> str:
    """Format a score for a table."""
    return f"{value:.2f}" if abs(value) < 1e4 else f"{value:.4g}"


def check_metric(results: Sequence[Result], cells: Sequence[Cell]) -> None:
    """Refuse a metric that no finished run of its columns has logged."""
    for metric in dict.fromkeys(cell.metric for cell in cells if cell.metric):
        columns = {cell.column for cell in cells if cell.metric == metric}
        _check_logged(metric, [result for result in results if result.column in columns], cells)


def _check_logged(metric: str, results: Sequence[Result], cells: Sequence[Cell]) -> None:
    if not any(result.finished for result in results) or any(result.metric for result in results):
        return
    logged = sorted({name for cell in cells if cell.finished for row in cell.history() for name in row})
    raise ValueError(
        f"no run logged the table's metric {metric}, but {', '.join(logged)}: correct `metric` and give the same command again; "
        f"nothing is run twice"
    )
