"""Whether a paper's figures are reproduced.

A published score is reproduced if our interval contains it: the confidence interval of the mean over our seeds, widened by half a unit of
the last digit that the paper prints (0.005 for 73.07, half a round). A published *gain* is the difference of two published scores. It is
reproduced if our interval of the difference, paired by seed, contains it and our mean difference has the same sign. A wide interval
contains many figures, so each mark comes with its interval. One seed has no interval and no mark. Bytes do not depend on random draws: they
are reproduced within one per cent. The saved per cent of the bytes to a target is judged like scores. Seconds depend on the machine, and
have no mark. Runs with other settings than the table's are shown and not judged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flcog.commands.compare.filled import Filled
from flcog.commands.compare.paired import Difference, Estimate, estimate
from flcog.commands.compare.published import Figure, Quantity
from flcog.commands.compare.results import Result
from flcog.commands.compare.savings import saving

NOT_RUN, ONE_SEED, NO, YES, NOT_JUDGED, OTHER = "not run", "one seed", "no", "yes", "not judged", "other settings"


@dataclass(frozen=True)
class Verdict:
    """A published figure beside ours.

    Args:
        row, column, quantity: its place.
        published: the paper's figure.
        ours: the mean over finished seeds; None for rounds to a target that some seed missed.
        text: our result if it is no number.
        gain: our difference from the compared row, and the paper's; None if either is unknown.
        marks: for the figure, and for the gain if it is known.
    """

    row: str
    column: str
    quantity: Quantity
    published: Figure
    ours: Estimate | None
    text: str
    gain: tuple[Difference, float] | None
    marks: tuple[str, ...]

    @property
    def mark(self) -> str:
        """Both marks in one or two words: "yes", "gain only", "no", "one seed"."""
        figure, *gain = self.marks
        if not gain or gain[0] == figure:
            return figure
        return {(YES, NO): "figure only", (NO, YES): "gain only"}.get((figure, gain[0]), figure)


def verdicts(filled: Filled) -> list[Verdict]:
    """The verdicts on all published figures."""
    return [
        _verdict(filled, row, column, quantity, figure)
        for column in filled.columns
        for row, cells in filled.table.published.items()
        for quantity, figure in cells.get(column, {}).items()
    ]


def _verdict(filled: Filled, row: str, column: str, quantity: Quantity, figure: Figure) -> Verdict:
    runs = [result for result in filled.of(row, column) if result.finished]
    gain = _gain(filled, row, column) if quantity == "score" else None
    if quantity == "rounds":
        ours, text, mark = _rounds(runs, figure, filled.table.confidence)
    elif quantity == "saved":
        ours, text, mark = _saved(filled, row, column, runs, figure)
    else:
        ours, text = _ours(filled, row, column, quantity, runs), ""
        mark = _mark(ours, figure, quantity)
    if _have_other_settings(runs):
        mark = OTHER
    marks: tuple[str, ...] = (mark,)
    if gain is not None:
        other = mark == OTHER or _have_other_settings(filled.of(filled.table.against[row], column))
        # Each of the two published scores was rounded.
        marks = (mark, OTHER if other else _gain_mark(*gain, 2 * figure.rounding))
    return Verdict(row, column, quantity, figure, ours, text, gain, marks)


def _have_other_settings(runs: Sequence[Result]) -> bool:
    """Whether runs had other settings than the table's, so that they cannot reproduce the paper's figures."""
    return any(run.arguments or run.outdated for run in runs)


def _ours(filled: Filled, row: str, column: str, quantity: Quantity, runs: Sequence[Result]) -> Estimate:
    if quantity == "score":
        return filled.estimate(row, column)
    found = [run.seconds if quantity == "seconds" else run.total_bytes for run in runs]
    return estimate([value for value in found if not math.isnan(value)], filled.table.confidence)


def _mark(ours: Estimate, figure: Figure, quantity: Quantity) -> str:
    if ours.count == 0:
        return NOT_RUN
    if quantity == "seconds":
        return NOT_JUDGED
    if quantity == "bytes":
        return YES if abs(ours.mean - figure.value) <= 0.01 * figure.value else NO
    if ours.count == 1:
        return ONE_SEED
    return YES if abs(ours.mean - figure.value) <= ours.half + figure.rounding else NO


def _rounds(runs: Sequence[Result], figure: Figure, confidence: float) -> tuple[Estimate | None, str, str]:
    """Rounds to a target: our mean, or a text if a seed missed the target, and the mark."""
    targets = {target for run in runs for target in run.targets}
    if len(targets) > 1:
        return None, f"{len(targets)} targets", NOT_JUDGED
    reached = [run.targets[target][0] for run in runs for target in targets if target in run.targets]
    if runs and len(reached) < len(runs):
        short = min(run.rounds for run in runs if not run.targets)
        text = f"> {short} ({len(runs) - len(reached)} of {len(runs)} seeds)"
        agree = figure.beyond and not reached and short >= figure.value
        return None, text, ONE_SEED if len(runs) == 1 else YES if agree else NO
    ours = estimate(reached, confidence)
    if figure.beyond and ours.count > 1:
        return ours, "", YES if ours.mean > figure.value else NO
    return ours, "", _mark(ours, figure, "rounds")


def _saved(filled: Filled, row: str, column: str, runs: Sequence[Result], figure: Figure) -> tuple[Estimate | None, str, str]:
    """The saved per cent of bytes: our mean, or a text if it is no number, and the mark."""
    found, missed = saving(filled, row, column), [run for run in runs if not run.targets]
    if found is None or not found.percent.count:
        said = f"target not reached ({len(missed)} of {len(runs)} seeds)" if missed else ""
        ours = None if missed else estimate([], filled.table.confidence)
        return ours, said, NOT_RUN if not missed else ONE_SEED if len(runs) == 1 else NO
    ours, slack = found.percent, figure.rounding
    text = f"> {ours.mean:.1f} %" if found.beyond else ""
    if ours.count == 1:
        mark = ONE_SEED
    elif figure.beyond:  # both are lower bounds: a smaller bound of ours does not contradict the paper
        mark = YES if ours.mean >= figure.value - slack else NOT_JUDGED if found.beyond else NO
    elif found.beyond:
        mark = NO if ours.mean > figure.value + slack else NOT_JUDGED
    else:
        mark = _mark(ours, figure, "saved")
    return None if found.beyond else ours, text, mark


def _gain(filled: Filled, row: str, column: str) -> tuple[Difference, float] | None:
    """Our difference and the paper's. None unless the paper has both scores and both rows have runs."""
    comparison = filled.comparisons(column).get(row)
    if comparison is None:
        return None
    figures = [filled.table.published.get(name, {}).get(column, {}).get("score") for name in (row, comparison.against)]
    if figures[0] is None or figures[1] is None:
        return None
    return comparison.difference, figures[0].value - figures[1].value


def _gain_mark(ours: Difference, published: float, rounding: float) -> str:
    if ours.count == 1:
        return ONE_SEED
    inside = abs(ours.mean - published) <= ours.half + rounding
    return YES if inside and ours.mean * published >= 0 else NO
