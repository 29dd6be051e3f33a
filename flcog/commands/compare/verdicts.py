"""Whether a paper's figures are reproduced, contradicted or undecided, by a rule that the table fixes before its runs.

The rule is two one-sided tests. Let d be our mean minus the published figure. A figure is *reproduced* if the 90 % interval of d lies
within ± the table's margin, *contradicted* if the 95 % interval of d lies wholly outside the margin, and *undecided* otherwise. A wide
interval therefore decides nothing. The variance of d is the variance of our mean plus the paper's own: its printed ± (divided by the
square root of the paper's number of trials, if the table states it), and our variance over splits if our seeds draw splits, because the
paper used one split or does not say. The degrees of freedom are Welch's, with the paper's ± as known.

Gains over the compared row are the primary figures, because arms share seeds and splits. A gain is reproduced only if our paired 95 %
interval also excludes 0, whatever the confidence of the table's intervals. Its margin is at most half of the published gain. Rounds to a
target are compared as log ratios; the margin is a ratio, and a seed that missed the target counts as a lower bound. Such bounds vary less
than the true rounds, so their interval alone would contradict a paper whose figure is just within the margin in up to 24 % of cases with
two seeds and 12 % with three, and not in 2.5 %. If a seed missed the target, a figure is therefore contradicted only if each seed also
needs more than the margin squared times the published rounds: then in 4 and 2.5 %, if a standard deviation over seeds is a factor as large
as the margin.

No verdict is shown before all seeds of the table's file have finished, and runs with further seeds do not count: whoever may add seeds
until a verdict pleases errs more often. An arm with a diverged seed, and runs with other settings than the table's, are not judged. Bytes
do not depend on random draws: they are reproduced within one per cent, and undecided if no run tells them, as private runs do not.
Seconds depend on the machine and are not judged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy import special

from flcog.commands.compare.paired import Estimate, estimate
from flcog.commands.compare.plan import Table
from flcog.commands.compare.published import OF_TWO_ROWS, Figure, Quantity
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import Result
from flcog.commands.compare.savings import saving

REPRODUCED, CONTRADICTED, UNDECIDED = "reproduced", "contradicted", "undecided"
NOT_RUN, NOT_JUDGED, NO_MARGIN, DIVERGED, OTHER = "not run", "not judged", "no margin", "diverged", "other settings"
CONFIDENCE = 0.95
"""Of the interval of a gain that has to exclude 0."""
BYTES_AGREE = 0.01
Interval = tuple[float, float]


@dataclass(frozen=True)
class Gap:
    """Our figure minus the published one, with its intervals.

    Args:
        narrow: the 90 % interval, for the two one-sided tests.
        wide: the 95 % interval.
        least: our smallest seed minus the published figure, if some seeds are lower bounds; else None.
    """

    narrow: Interval
    wide: Interval
    least: float | None = None

    def mark(self, margin: float) -> str:
        """The verdict with this margin."""
        if -margin <= self.narrow[0] and self.narrow[1] <= margin:
            return REPRODUCED
        return CONTRADICTED if self.wide[0] > margin or self.wide[1] < -margin else UNDECIDED


@dataclass(frozen=True)
class Verdict:
    """A published figure beside ours.

    Args:
        row, column, quantity: its place. A gain is the difference from the compared row.
        published: the paper's figure.
        ours: the mean over the table's seeds; None for rounds to a target that some seed missed.
        text: our result if it is no number.
        interval: the 95 % interval of ours minus the published figure, for rounds of their ratio; None without one.
        mark: the verdict, or the reason for its absence.
        exploratory: whether a seed was seen before the rule was fixed.
    """

    row: str
    column: str
    quantity: Quantity
    published: Figure
    ours: Estimate | None
    text: str
    interval: Interval | None
    mark: str
    exploratory: bool = False

    @property
    def shown(self) -> str:
        """The verdict, with a note on seeds that were seen before."""
        judged = self.mark in (REPRODUCED, CONTRADICTED, UNDECIDED)
        return f"{self.mark} (exploratory)" if judged and self.exploratory else self.mark


def judge(ours: Estimate, confidence: float, published: float, error: float = 0.0, over_splits: bool = False) -> Gap:
    """Compare our mean with a published figure.

    Args:
        ours: our mean with its interval.
        confidence: of this interval.
        published: the figure.
        error: the standard error of the published figure, which counts as known.
        over_splits: whether to add our variance over seeds, which draw splits, to the variance of the published figure.
    """
    difference, freedom = ours.mean - published, float(ours.count - 1)
    per_mean = (ours.half / float(special.stdtrit(freedom, (1 + confidence) / 2))) ** 2
    own = per_mean * (1 + over_splits * ours.count)
    variance = own + error**2
    freedom = 1e9 if own == 0 else min(1e9, variance**2 / (own**2 / freedom))
    halves = [float(special.stdtrit(freedom, quantile)) * math.sqrt(variance) for quantile in (0.95, 0.975)]
    narrow, wide = ((difference - half, difference + half) for half in halves)
    return Gap(narrow, wide)


def verdicts(filled: ResultTable) -> list[Verdict]:
    """The verdicts on all published figures, gains first, by the seeds of the table's file."""
    filled = filled.on_planned_seeds(CONFIDENCE)
    found = [
        _verdict(filled, row, column, quantity, figure)
        for column in filled.columns
        for row in filled.table.published
        for quantity, figure in _with_gain(filled, row, column).items()
    ]
    return sorted(found, key=lambda verdict: verdict.quantity != "gain")


def _with_gain(filled: ResultTable, row: str, column: str) -> dict[Quantity, Figure]:
    """The published figures of a cell, with the gain over the compared row if the paper has both scores."""
    published, against = filled.table.published, filled.table.against[row]
    figures = dict(published[row].get(column, {}))
    other = published.get(against, {}).get(column, {}).get("score")
    mine = figures.get("score")
    if mine is not None and other is not None and row != against and "gain" not in figures:
        spreads = [figure.spread for figure in (mine, other) if figure.spread is not None]
        error = math.hypot(*spreads) if spreads else None
        figures["gain"] = Figure(mine.value - other.value, error, rounding=mine.rounding + other.rounding)
    return figures


def _verdict(filled: ResultTable, row: str, column: str, quantity: Quantity, figure: Figure) -> Verdict:
    table, runs = filled.table, [result for result in filled.of(row, column) if result.finished]
    concerned = runs + (filled.of(table.against[row], column) if quantity in OF_TWO_ROWS else [])
    ours, text, judged = _compared(filled, row, column, quantity, figure)
    mark = _reason(filled, row, column, quantity, concerned)
    if not mark and quantity == "bytes" and ours is not None:
        agree = abs(ours.mean - figure.value) <= BYTES_AGREE * figure.value
        mark = UNDECIDED if not ours.count else REPRODUCED if agree else CONTRADICTED
    margin = _margin(filled, quantity, figure)
    if not mark and margin is None:
        mark = NOT_JUDGED if quantity == "gain" and figure.value == 0 and table.margins else NO_MARGIN
    if not mark and margin is not None:
        mark = judged.mark(margin + (figure.within or figure.rounding) * (quantity != "rounds")) if judged else UNDECIDED
        if quantity == "rounds":
            mark = _with_bounds(mark, figure, judged, margin)
        if quantity == "gain" and figure.value and mark == REPRODUCED and ours is not None and ours.low <= 0 <= ours.high:
            mark = UNDECIDED
    interval = None if judged is None else judged.wide
    if interval is not None and quantity == "rounds":
        interval = (math.exp(interval[0]), math.exp(interval[1]))
    seen = any(run.seed in table.exploratory for run in runs)
    return Verdict(row, column, quantity, figure, ours, text, interval, mark, seen)


def _reason(filled: ResultTable, row: str, column: str, quantity: Quantity, runs: Sequence[Result]) -> str:
    """The reason against a verdict; empty if there is none."""
    planned = len(filled.table.planned)
    arms = [row, filled.table.against[row]] if quantity in OF_TWO_ROWS else [row]
    done = [sum(run.finished for run in filled.of(arm, column)) for arm in arms]
    if not filled.of(row, column) or not done[0]:
        return NOT_RUN
    if quantity == "seconds":
        return NOT_JUDGED
    if any(run.facts.other for run in runs):
        return OTHER
    if any(run.diverged for run in runs):
        return DIVERGED
    least = min(done)
    if quantity == "bytes" or least == planned > 1:
        return ""
    return f"{least} of {planned} seeds" if least < planned else "one seed"


def _margin(filled: ResultTable, quantity: Quantity, figure: Figure) -> float | None:
    """The margin of a quantity; None if the table has none. It is a logarithm for rounds, and at most half of a published gain.

    A published range is itself the margin if 0 is its middle.
    """
    margin = filled.table.margins.get("score" if quantity == "gain" else quantity)
    if margin is None:
        return None
    if quantity == "gain":
        return min(margin, abs(figure.value) / 2) or (0.0 if figure.within else None)
    return math.log(margin) if quantity == "rounds" else margin


def _compared(
    filled: ResultTable, row: str, column: str, quantity: Quantity, figure: Figure
) -> tuple[Estimate | None, str, Gap | None]:
    """Our figure, its text if it is no number, and its difference from the published one."""
    table = filled.table
    runs = [run for run in filled.of(row, column) if run.finished]
    if quantity == "rounds":
        return _rounds(table, runs, figure)
    if quantity == "saved":
        found = saving(filled, row, column)
        if found is None or not found.percent.count:
            missed = [run for run in runs if not run.targets]
            text = f"target not reached ({len(missed)} of {len(runs)} seeds)" if missed else ""
            return None if missed else estimate([], table.confidence), text, None
        ours = found.percent
        if found.beyond or figure.beyond:
            return (None, f"> {ours.mean:.1f} %", None) if found.beyond else (ours, "", None)
    elif quantity == "gain":
        comparison = filled.comparisons(column).get(row)
        ours = estimate([], table.confidence) if comparison is None else comparison.difference
    elif quantity == "score":
        ours = filled.estimate(row, column)
    else:
        values = [run.facts.seconds if quantity == "seconds" else run.facts.total_bytes for run in runs]
        return estimate([value for value in values if not math.isnan(value)], table.confidence), "", None
    return ours, "", _gap(table, ours, figure.value, figure.spread or 0)


def _gap(table: Table, ours: Estimate, published: float, spread: float) -> Gap | None:
    """Our mean minus the paper's, whose ± is ``spread``. None for fewer than two seeds."""
    if ours.count < 2:
        return None
    return judge(ours, table.confidence, published, spread / math.sqrt(table.trials), table.varies_split)


def _rounds(table: Table, runs: Sequence[Result], figure: Figure) -> tuple[Estimate | None, str, Gap | None]:
    """Rounds to a target, compared as log ratios. A seed that missed the target counts with its last round, a lower bound.

    The paper's ± of a logarithm is its relative ±.
    """
    targets = {target for run in runs for target in run.targets}
    if len(targets) > 1:
        return None, f"{len(targets)} targets", None
    (target,) = targets or {""}
    reached = [run.targets[target][0] for run in runs if target in run.targets]
    needed = [run.targets[target][0] if target in run.targets else max(1, run.spent[0]) for run in runs]
    logs = estimate([math.log(value) for value in needed], table.confidence)
    judged = _gap(table, logs, math.log(figure.value), (figure.spread or 0) / figure.value)
    if len(reached) < len(runs):
        judged = judged and replace(judged, least=math.log(min(needed) / figure.value))
        short = min(run.spent[0] for run in runs if target not in run.targets)
        return None, f"> {short} ({len(reached)} of {len(runs)} seeds reached it)", judged
    return estimate(reached, table.confidence), "", judged


def _with_bounds(mark: str, figure: Figure, judged: Gap | None, margin: float) -> str:
    """The verdict on rounds if ours or the paper's are only lower bounds."""
    if judged is None or (judged.least is None and not figure.beyond):
        return mark
    if figure.beyond and judged.narrow[0] >= -margin:
        return REPRODUCED
    if judged.least is None:
        return CONTRADICTED if judged.wide[1] < -margin else UNDECIDED
    return CONTRADICTED if not figure.beyond and judged.wide[0] > margin and judged.least > 2 * margin else UNDECIDED
