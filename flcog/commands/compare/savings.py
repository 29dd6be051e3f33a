"""The rounds and bytes that a row saves until it reaches a target, compared with another row."""

import math
from dataclasses import dataclass

from flcog.commands.compare.paired import Estimate, estimate
from flcog.commands.compare.result_table import ResultTable


@dataclass(frozen=True)
class Saving:
    """The savings over the seeds that both rows have finished.

    Args:
        times: the other row's rounds, divided by this row's.
        percent: the saved per cent of the other row's bytes in both directions, including exchanges before round 1.
        beyond: whether both values are lower bounds, because the other row missed the target with some seed.
    """

    times: Estimate
    percent: Estimate
    beyond: bool

    @property
    def text(self) -> str:
        """ "22.0x, 95.0 %", or "> 25.0x, > 95.6 %"."""
        more = "> " if self.beyond else ""
        percent = f", {more}{self.percent.mean:.1f} %" if self.percent.count else ""
        return f"{more}{self.times.mean:.1f}x{percent}"


def saving(filled: ResultTable, row: str, column: str) -> Saving | None:
    """The savings of a row. None without a row to compare with, with several targets, or if the row itself missed the target."""
    targets = {target for result in filled.in_column(column) for target in result.targets}
    against = filled.table.against[row]
    ours, others = ({run.seed: run for run in filled.of(name, column) if run.finished} for name in (row, against))
    pairs = [(ours[seed], others[seed]) for seed in ours if seed in others]
    if against == row or len(targets) != 1 or not pairs:
        return None
    (target,) = targets
    if any(target not in run.targets for run in [*ours.values(), *(run for run in others.values() if run.diverged)]):
        return None
    # A run that missed the target counts with all its rounds and bytes.
    needed = [(run.targets[target], other.targets.get(target, other.spent)) for run, other in pairs]
    confidence = filled.table.confidence
    percent = [100 * (1 - sent / theirs) for (_, sent), (_, theirs) in needed]
    return Saving(
        estimate([theirs / rounds for (rounds, _), (theirs, _) in needed], confidence),
        estimate([value for value in percent if not math.isnan(value)], confidence),
        any(target not in other.targets for _, other in pairs),
    )
