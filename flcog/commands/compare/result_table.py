"""A table with the results of its runs: scores by row, column and seed, and differences between rows."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flcog.commands.compare.facts import Facts
from flcog.commands.compare.paired import Difference, Estimate, estimate, holm, paired_difference
from flcog.commands.compare.plan import Summary, Table
from flcog.commands.compare.results import Result, decimals, percent_scale
from flcog.core.monitor import lower_is_better


@dataclass(frozen=True)
class Comparison:
    """A row compared with another row, in one setting.

    Args:
        against: the other row.
        difference: of the compared score, over the seeds that both rows have finished.
        p_holm: the p-value of the test, adjusted over the rows of the column; NaN if there is none.
    """

    against: str
    difference: Difference
    p_holm: float


class ResultTable:
    """A table with the results of its runs. Scores of a metric that is a share are in percent.

    Args:
        table: the table.
        results: the results of the runs that have begun.
    """

    def __init__(self, table: Table, results: Sequence[Result]) -> None:
        self.table = table
        self.columns = [*table.columns, *filter(None, [table.average, table.worst])]
        self._results: dict[tuple[str, str], list[Result]] = {}
        combined = [*_over_settings(table, results, table.average), *_over_settings(table, results, table.worst, worst=True)]
        for result in [*results, *combined]:
            self._results.setdefault((result.row, result.column), []).append(result)
        self._scales = {column: percent_scale(self.in_column(column)) for column in self.columns}
        self.decimals = {column: decimals(self.in_column(column)) for column in self.columns}
        """The decimal places of each column's scores."""

    def of(self, row: str, column: str) -> list[Result]:
        """The results of the finished runs. If no run has finished, the results so far: early and final scores are not mixed."""
        begun = self._results.get((row, column), [])
        return [result for result in begun if result.finished] or begun

    @property
    def unfinished(self) -> list[Result]:
        """The results of the runs that have begun but not finished."""
        found = [
            result for column in self.table.columns for row in self.table.rows for result in self._results.get((row, column), [])
        ]
        return [result for result in found if not result.finished]

    @property
    def results(self) -> list[Result]:
        """The results in all settings."""
        return [result for column in self.table.columns for result in self.in_column(column)]

    def on_planned_seeds(self, confidence: float) -> "ResultTable":
        """The same table with the seeds of its file alone, and with intervals of this confidence."""
        planned = [result for result in self.results if result.seed in self.table.planned]
        return ResultTable(replace(self.table, confidence=confidence), planned)

    def in_column(self, column: str) -> list[Result]:
        return [result for row in self.table.rows for result in self.of(row, column)]

    def scale(self, column: str) -> float:
        """100 if the column's metric is a share, else 1."""
        return self._scales[column]

    def lower_is_better(self, column: str) -> bool:
        metric = next((result.metric for result in self.in_column(column) if result.metric), None)
        return metric is not None and lower_is_better(metric)

    def is_percent(self, column: str) -> bool:
        return self.scale(column) == 100

    def scores(self, row: str, column: str, summary: Summary, finished: bool = False) -> dict[int, float]:
        """Scores by seed. With ``finished``, unfinished runs are left out."""
        return {
            result.seed: self.scale(column) * result.scores[summary]
            for result in self.of(row, column)
            if summary in result.scores and (result.finished or not finished)
        }

    def diverged(self, row: str, column: str) -> int:
        """The number of seeds that have diverged."""
        return sum(result.diverged for result in self.of(row, column))

    def deviation(self, row: str, column: str) -> float:
        """The standard deviation over a run's last evaluations, averaged over the runs; NaN if no run has two evaluations."""
        found = [result.deviation for result in self.of(row, column) if not math.isnan(result.deviation)]
        return self.scale(column) * statistics.fmean(found) if found else math.nan

    def estimate(self, row: str, column: str) -> Estimate:
        """The compared score over finished seeds."""
        scores = self.scores(row, column, self.table.summary_of(column), finished=True).values()
        return estimate([score for score in scores if math.isfinite(score)], self.table.confidence)

    def comparisons(self, column: str) -> dict[str, Comparison]:
        """Comparisons by row in one setting, for rows with a finished run whose seed the other row has finished, too."""
        found = {
            row: (against, self._difference(row, against, column))
            for row, against in self.table.against.items()
            if row != against
        }
        found = {row: (against, difference) for row, (against, difference) in found.items() if difference.count}
        adjusted = holm([difference.p for _, difference in found.values()])
        return {
            row: Comparison(against, difference, p)
            for (row, (against, difference)), p in zip(found.items(), adjusted, strict=True)
        }

    def _difference(self, row: str, against: str, column: str) -> Difference:
        ours, theirs = (self.scores(name, column, self.table.summary_of(column), finished=True) for name in (row, against))
        if self.diverged(row, column) or self.diverged(against, column):
            ours = {}
        seeds = [seed for seed in ours if seed in theirs and math.isfinite(ours[seed]) and math.isfinite(theirs[seed])]
        return paired_difference([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds], self.table.confidence)


def _over_settings(table: Table, results: Sequence[Result], name: str, worst: bool = False) -> list[Result]:
    """The mean over all settings, for each row and seed with a run in every setting. None if the main metrics of settings differ.

    Args:
        table: the table.
        results: in its settings.
        name: of the column; empty for no such column.
        worst: whether to take the worst score over the settings, and not the mean.
    """
    if not name:
        return []
    found = {(result.row, result.column, result.seed): result for result in results if result.scores or result.diverged}
    averages = []
    for row, seed in dict.fromkeys((result.row, result.seed) for result in results):
        parts = [found[row, column, seed] for column in table.columns if (row, column, seed) in found]
        if len(parts) < len(table.columns) or len({part.metric for part in parts} - {None}) > 1:
            continue
        common = [summary for summary in parts[0].scores if all(summary in part.scores for part in parts)]
        extreme = np.max if lower_is_better(parts[0].metric or "") else np.min  # NaN if any score is NaN
        of: Callable[[Sequence[float]], float] = extreme if worst else statistics.fmean
        averages.append(
            Result(
                row,
                name,
                seed,
                finished=all(part.finished for part in parts),
                metric=parts[0].metric,
                scores={summary: float(of([part.scores[summary] for part in parts])) for summary in common},
                rounds=min(part.rounds for part in parts),
                facts=Facts(other="; ".join(filter(None, {part.facts.other for part in parts}))),
                diverged=any(part.diverged for part in parts),
                averaged=min(part.averaged for part in parts),
                deviation=statistics.fmean(part.deviation for part in parts),
            )
        )
    return averages
