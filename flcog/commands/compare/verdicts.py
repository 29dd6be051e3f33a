"""Whether a paper's figures are reproduced, contradicted or undecided, by a rule that the table fixes before its runs.

The rule is two one-sided tests. Let d be our mean minus the published figure. A figure is *reproduced* if the 90 % interval of d lies
within ± the table's margin, *contradicted* if the 95 % interval of d lies wholly outside the margin, and *undecided* otherwise. A wide
interval therefore decides nothing. The variance of d is the variance of our mean plus the paper's own: its printed ± (divided by the
square root of the paper's number of trials, if the table states it), and our variance over splits if our seeds draw splits, because the
paper used one split or does not say. The degrees of freedom are Welch's, with the paper's ± as known.

Gains over the compared row are the primary figures, because arms share seeds and splits. A gain is reproduced only if our paired 95 %
interval also excludes 0. Its margin is at most half of the published gain. Rounds to a target are compared as log ratios; the margin is a
ratio, and a seed that missed the target counts as a lower bound. Such bounds vary less than the true rounds, so their interval alone would
contradict a paper whose figure is just within the margin in up to 24 % of cases with two seeds and 12 % with three, and not in 2.5 %. If a
seed missed the target, a figure is therefore contradicted only if each seed also needs more than the margin squared times the published
rounds: then in 4 and 2.5 %, if a standard deviation over seeds is a factor as large as the margin.

No verdict is shown before all seeds of the table's file have finished, and runs with further seeds do not count: whoever may add seeds
until a verdict pleases errs more often. An arm with a diverged seed, and runs with other settings than the table's, are not judged. Bytes
do not depend on random draws, and have a margin of one per cent. Seconds depend on the machine and are not judged.
"""

import math
from typing import NamedTuple

import pandas
from scipy import special

from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.statistics import Estimate, estimate
from flcog.commands.compare.table import OF_TWO_ROWS, Figure, Quantity

REPRODUCED, CONTRADICTED, UNDECIDED = "reproduced", "contradicted", "undecided"
NOT_RUN, NOT_JUDGED, NO_MARGIN, DIVERGED, OTHER = "not run", "not judged", "no margin", "diverged", "other settings"
BYTES_AGREE = 0.01
Interval = tuple[float, float]


class Ours(NamedTuple):
    """Our figure: the estimate that is judged (of logarithms for rounds), the mean (NaN for a lower bound), and both as text.

    ``least`` is the smallest seed, if some seeds are lower bounds.
    """

    judged: Estimate
    mean: float
    bound: str = ""
    least: float | None = None


class Verdict(NamedTuple):
    """A published figure beside ours."""

    row: str
    view: str
    quantity: Quantity
    published: Figure
    ours: Ours
    interval: Interval | None  # the 95 % interval of ours minus the published figure, for rounds of their ratio
    mark: str  # the verdict, or the reason for its absence
    exploratory: bool = False  # whether a seed was seen before the rule was fixed
    margin: float | None = None  # in the figure's unit, for rounds a factor

    @property
    def shown(self) -> str:
        """The verdict, with a note on seeds that were seen before."""
        judged = self.mark in (REPRODUCED, CONTRADICTED, UNDECIDED)
        return f"{self.mark} (exploratory)" if judged and self.exploratory else self.mark


def gap(ours: Estimate, published: float, error: float = 0.0, over_splits: bool = False) -> tuple[Interval, Interval]:
    """The 90 % and the 95 % interval of our mean minus a published figure, whose standard ``error`` counts as known.

    With ``over_splits`` our variance over seeds, which draw splits, is added to the variance of the published figure.
    """
    difference, own = ours.mean - published, ours.error**2 * (1 + over_splits * ours.count)
    variance = own + error**2
    freedom = 1e9 if own == 0 else min(1e9, variance**2 / (own**2 / (ours.count - 1)))
    halves = [float(special.stdtrit(freedom, quantile)) * math.sqrt(variance) for quantile in (0.95, 0.975)]
    narrow, wide = ((difference - half, difference + half) for half in halves)
    return narrow, wide


def mark_of(narrow: Interval, wide: Interval, margin: float) -> str:
    """The verdict on a difference with these intervals."""
    if -margin <= narrow[0] and narrow[1] <= margin:
        return REPRODUCED
    return CONTRADICTED if wide[0] > margin or wide[1] < -margin else UNDECIDED


def verdicts(filled: ResultTable) -> list[Verdict]:
    """The verdicts on all published figures, gains first, by the seeds of the table's file."""
    filled = filled.on_planned_seeds()
    found = [
        _verdict(filled, row, view, quantity, figure)
        for view in filled.views
        for row in filled.table.published
        if row in filled.table.rows
        for quantity, figure in _with_gain(filled, row, view).items()
    ]
    return sorted(found, key=lambda verdict: verdict.quantity != "gain")


def _with_gain(filled: ResultTable, row: str, view: str) -> dict[Quantity, Figure]:
    """The published figures of a cell, with the gain over the compared row if the paper has both scores."""
    against = filled.table.against[row]
    figures = dict(filled.table.figures(row, view))
    mine, other = figures.get("score"), filled.table.figures(against, view).get("score")
    if mine is not None and other is not None and row != against and "gain" not in figures:
        spreads = [figure.spread for figure in (mine, other) if figure.spread is not None]
        figures["gain"] = Figure(mine.value - other.value, math.hypot(*spreads) if spreads else None)
    return figures


def _verdict(filled: ResultTable, row: str, view: str, quantity: Quantity, figure: Figure) -> Verdict:
    table, logs = filled.table, quantity == "rounds"
    if not filled.of(row, view).finished.any():
        return Verdict(row, view, quantity, figure, Ours(estimate([]), math.nan), None, NOT_RUN)
    ours = _ours(filled, row, view, quantity)
    value, spread = (math.log(figure.value), (figure.spread or 0) / figure.value) if logs else (figure.value, figure.spread or 0)
    found = None
    if ours.judged.count > 1 and not (quantity == "saved" and (ours.bound or figure.beyond)):
        found = gap(ours.judged, value, spread / math.sqrt(table.trials), table.varies_split)
    mark, margin = _reason(filled, row, view, quantity), _margin(filled, quantity, figure)
    if not mark and margin is None:
        mark = NOT_JUDGED if quantity == "gain" and figure.value == 0 and table.margin else NO_MARGIN
    elif not mark and margin is not None:
        mark = mark_of(*found, margin + figure.within) if found else UNDECIDED
        if found and logs:
            mark = _with_bounds(mark, figure, *found, margin, None if ours.least is None else ours.least - value)
        elif quantity == "gain" and figure.value and mark == REPRODUCED and ours.judged.low <= 0 <= ours.judged.high:
            mark = UNDECIDED
    interval = found and ((math.exp(found[1][0]), math.exp(found[1][1])) if logs else found[1])
    seen = bool(filled.of(row, view).seed.isin(table.exploratory).any())
    allowed = None if margin is None else math.exp(margin) if logs else margin + figure.within
    return Verdict(row, view, quantity, figure, ours, interval, mark, seen, allowed)


def _reason(filled: ResultTable, row: str, view: str, quantity: Quantity) -> str:
    """The reason against a verdict; empty if there is none."""
    planned = len(filled.table.file.seeds)
    arms = [filled.of(name, view) for name in ([row, filled.table.against[row]] if quantity in OF_TWO_ROWS else [row])]
    done = [int(arm.finished.sum()) for arm in arms]
    if quantity == "seconds":
        return NOT_JUDGED
    if any((arm.other != "").any() for arm in arms):
        return OTHER
    if any(arm.diverged.any() for arm in arms):
        return DIVERGED
    if min(done) == planned > 1:
        return ""
    return f"with {min(done)} of {planned} seeds" if min(done) < planned else "with one seed"


def _margin(filled: ResultTable, quantity: Quantity, figure: Figure) -> float | None:
    """The margin of a quantity; None if the table has none. It is a logarithm for rounds, and at most half of a published gain.

    A published range is itself the margin if 0 is its middle.
    """
    if quantity == "bytes":
        return BYTES_AGREE * figure.value
    margin = filled.table.margin.get("score" if quantity == "gain" else quantity)
    if margin is None:
        return None
    if quantity == "gain":
        return min(margin, abs(figure.value) / 2) or (0.0 if figure.within else None)
    return math.log(margin) if quantity == "rounds" else margin


def _ours(filled: ResultTable, row: str, view: str, quantity: Quantity) -> Ours:
    runs = filled.of(row, view)
    runs = runs[runs.finished]
    if quantity == "rounds":
        return _rounds(runs)
    if quantity == "saved":
        found, missed = filled.saving(row, view), int((runs.targets.map(len) == 0).sum())
        if found is None or not found.percent.count:
            return Ours(estimate([]), math.nan, f"target not reached ({missed} of {len(runs)} seeds)" if missed else "")
        return Ours(found.percent, found.percent.mean, f"> {found.percent.mean:.1f} %" if found.beyond else "")
    if quantity == "gain":
        comparison = filled.comparisons(view).get(row)
        ours = estimate([]) if comparison is None else comparison.difference
    elif quantity == "score":
        ours = filled.estimate(row, view)
    else:
        ours = estimate(runs["seconds" if quantity == "seconds" else "total_bytes"].dropna().tolist())
    return Ours(ours, ours.mean)


def _rounds(runs: pandas.DataFrame) -> Ours:
    """Rounds to a target. A seed that missed it counts with its last round, a lower bound."""
    targets = {target for reached in runs.targets for target in reached}
    if len(targets) > 1:
        return Ours(estimate([]), math.nan, f"{len(targets)} targets")
    (target,) = targets or {""}
    reached = [found[target].rounds for found in runs.targets if target in found]
    missed = [spent.rounds for found, spent in zip(runs.targets, runs.spent, strict=True) if target not in found]
    logs = [math.log(max(1, rounds)) for rounds in (*reached, *missed)]
    if not missed:
        return Ours(estimate(logs), estimate(reached).mean)
    bound = f"> {min(missed)} ({len(reached)} of {len(runs)} seeds reached it)"
    return Ours(estimate(logs), math.nan, bound, min(logs))


def _with_bounds(mark: str, figure: Figure, narrow: Interval, wide: Interval, margin: float, least: float | None) -> str:
    """The verdict on rounds if ours or the paper's are only lower bounds. ``least`` is our smallest seed minus the figure."""
    if least is None and not figure.beyond:
        return mark
    if figure.beyond and narrow[0] >= -margin:
        return REPRODUCED
    if least is None:
        return CONTRADICTED if wide[1] < -margin else UNDECIDED
    return CONTRADICTED if not figure.beyond and wide[0] > margin and least > 2 * margin else UNDECIDED
