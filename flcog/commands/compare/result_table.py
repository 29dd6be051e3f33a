"""A table with the results of its runs: scores by row, view and seed, differences and savings between rows."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas

from flcog.commands.compare.results import FACTS
from flcog.commands.compare.statistics import Estimate, estimate, holm, paired_difference
from flcog.commands.compare.table import Summary, Table
from flcog.core.monitor import is_share, lower_is_better

SUMMARIES: tuple[Summary, ...] = ("best", "val", "last", "mean")
SCALED = [*SUMMARIES, "deviation"]
PLACE, OWN = (
    ("row", "column", "view", "seed", "label"),
    ("metric", "finished", "averaged", "targets", "asked", "spent", "other", "history"),
)
COLUMNS = [*PLACE, *FACTS, *OWN, *SCALED]
"""The columns of the frame: those of :func:`flcog.commands.compare.results.result_of`."""


class Comparison(NamedTuple):
    """A row compared with another row, in one view, over the seeds that both have finished."""

    against: str
    difference: Estimate
    p_holm: float  # adjusted over the rows of the view


class Saving(NamedTuple):
    """What a row saves until it reaches a target, over the seeds that it and another row have finished."""

    times: Estimate  # the other row's rounds, divided by this row's
    percent: Estimate  # of the other row's bytes in both directions, including exchanges before round 1
    beyond: bool  # whether both are lower bounds, because the other row missed the target with some seed


class ResultTable:
    """A table with a ``frame`` of results, a line for each run in each view. Scores of a metric that is a share are in ``percent``.

    Unfinished runs count only where no seed of a row has finished. Scores have four ``decimals`` for most losses, two for per cent and
    for large scores.
    """

    def __init__(self, table: Table, results: Sequence[Mapping[str, Any]]) -> None:
        self.table, self.views, self.results = table, [*table.views, *table.overall], results
        frame = pandas.DataFrame(list(results), columns=COLUMNS)
        types = dict.fromkeys(SCALED, float) | dict.fromkeys(("finished", "diverged"), bool)
        frame = frame[frame.row.isin(list(table.rows))].astype(types)
        self.unfinished = frame[~frame.finished]
        frame = frame[frame.finished | ~frame.groupby(["row", "view"]).finished.transform("any")]
        self.frame = pandas.concat([frame, *(_overall(table, frame, name) for name in table.overall)])
        self.percent, self.decimals = {}, {}
        for view in self.views:
            scores = self.in_view(view)[list(SUMMARIES)].stack().dropna()
            self.percent[view] = bool(metric := self.metric(view)) and is_share(metric, scores)
            self.frame.loc[self.frame.view == view, SCALED] *= 100 if self.percent[view] else 1
            finite = scores[np.isfinite(scores)].abs()
            self.decimals[view] = 4 if len(finite) and not self.percent[view] and finite.median() < 10 else 2
        self._places = dict(iter(self.frame.groupby(["row", "view"])))
        self.comparisons = functools.cache(self._comparisons)

    def of(self, row: str, view: str) -> pandas.DataFrame:
        return self._places.get((row, view), self.frame.iloc[:0])

    def in_view(self, view: str) -> pandas.DataFrame:
        return self.frame[self.frame.view == view]

    def on_planned_seeds(self) -> "ResultTable":
        """The same table with the seeds of its file alone."""
        return ResultTable(self.table, [result for result in self.results if result["seed"] in self.table.file.seeds])

    def metric(self, view: str) -> str:
        """The compared column of ``metrics.csv``; empty if no run has it."""
        return self.table.stated(next(iter(self.in_view(view).metric.dropna()), ""))

    def lower_is_better(self, view: str) -> bool:
        return lower_is_better(self.metric(view))

    def summary(self, view: str) -> Summary:
        """The score of a run that is compared in a view."""
        return self.table.views[view].summary if view in self.table.views else self.table.summary

    def scores(self, row: str, view: str, summary: Summary | None = None, finished: bool = False) -> pandas.Series:
        """Scores by seed, by default those that are compared. With ``finished``, unfinished runs are left out."""
        found, name = self.of(row, view), summary or self.summary(view)
        found = found[found.metric.notna() & (found.finished | (not finished))]
        return found.set_index("seed")[name].dropna() if name == "val" else found.set_index("seed")[name]

    def estimate(self, row: str, view: str) -> Estimate:
        """The compared score over finished seeds."""
        scores = self.scores(row, view, finished=True)
        return estimate(scores[np.isfinite(scores)].tolist())

    def _comparisons(self, view: str) -> dict[str, Comparison]:
        """Comparisons by row in one view, for rows with a finished run whose seed the other row has finished, too."""
        pairs = {row: against for row, against in self.table.against.items() if row != against}
        found = {row: one for row, against in pairs.items() if (one := self._difference(row, against, view)).count}
        adjusted = holm([difference.p for difference in found.values()])
        return {row: Comparison(pairs[row], one, p) for (row, one), p in zip(found.items(), adjusted, strict=True)}

    def _difference(self, row: str, against: str, view: str) -> Estimate:
        if self.of(row, view).diverged.any() or self.of(against, view).diverged.any():
            return estimate([])
        ours, theirs = self.scores(row, view, finished=True), self.scores(against, view, finished=True)
        pairs = ours.to_frame("ours").join(theirs.rename("theirs"), how="inner")
        pairs = pairs[np.isfinite(pairs).all(axis="columns")]
        return paired_difference(pairs.ours.tolist(), pairs.theirs.tolist())

    def saving(self, row: str, view: str) -> Saving | None:
        """What a row saves. None without a row to compare with, with several targets, or if the row itself missed the target."""
        targets = {target for reached in self.in_view(view).targets for target in reached}
        against = self.table.against[row]
        ours, others = ({run.seed: run for run in self.of(name, view).itertuples() if run.finished} for name in (row, against))
        common = [(run, others[seed]) for seed, run in ours.items() if seed in others]
        if against == row or len(targets) != 1 or not common:
            return None
        (target,) = targets
        if any(target not in run.targets for run in [*ours.values(), *(run for run in others.values() if run.diverged)]):
            return None
        # A run that missed the target counts with all its rounds and bytes.
        needed = [(run.targets[target], other.targets.get(target, other.spent)) for run, other in common]
        percent = [100 * (1 - own.bytes / other.bytes) for own, other in needed]
        return Saving(
            estimate([other.rounds / own.rounds for own, other in needed]),
            estimate([value for value in percent if not math.isnan(value)]),
            any(target not in other.targets for _, other in common),
        )


def _overall(table: Table, frame: pandas.DataFrame, name: str) -> pandas.DataFrame:
    """A line for each row and seed with a run in every view. None if the main metrics of the views differ."""
    lines = []
    for _, parts in frame[frame.metric.notna() | frame.diverged].groupby(["row", "seed"], sort=False):
        if len(parts) == len(table.views) and parts.metric.nunique() <= 1:
            metric = None if parts.metric.isna().any() else parts.metric.iloc[0]  # a run that diverged in round 1 has none
            worst = np.max if lower_is_better(table.stated(metric or "")) else np.min
            of = worst if table.overall[name] == "worst" else np.mean
            own: dict[str, Any] = {"view": name, "column": "", "metric": metric, "targets": {}, "asked": "", "history": []}
            line = parts.iloc[0].to_dict() | own
            line |= {summary: of(parts[summary].to_numpy()) for summary in SUMMARIES}  # NaN if any score is NaN
            line |= {"finished": parts.finished.all(), "diverged": parts.diverged.any(), "deviation": parts.deviation.mean()}
            lines.append(line | {"other": "; ".join(filter(None, parts.other))})
    return pandas.DataFrame(lines, columns=COLUMNS).astype(frame.dtypes)
