"""What a row saves on its way to a target, beside the row that it is compared with: rounds, and bytes both ways."""

import math
from dataclasses import dataclass

from flcog.commands.compare.filled import Filled
from flcog.commands.compare.paired import Estimate, estimate
from flcog.commands.compare.results import Result


@dataclass(frozen=True)
class Saving:
    """Over the seeds of which both rows have finished.

    Args:
        times: how many times fewer rounds the row takes.
        percent: of the other row's bytes that it does not send; what is sent before round 1 counts.
        beyond: whether the other row did not reach the target with some seed, so that both are at least as large.
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


def saving(filled: Filled, row: str, column: str) -> Saving | None:
    """None where there is nothing to compare, where there are several targets, or where the row itself did not get there."""
    targets = {target for result in filled.in_column(column) for target in result.targets}
    against = filled.table.against[row]
    ours, others = ({run.seed: run for run in filled.of(name, column) if run.finished} for name in (row, against))
    pairs = [(ours[seed], others[seed]) for seed in ours if seed in others]
    if against == row or len(targets) != 1 or not pairs:
        return None
    (target,) = targets
    if any(target not in run.targets for run in ours.values()):
        return None
    needed = [(run.targets[target], _needed(other, target)) for run, other in pairs]
    confidence = filled.table.confidence
    percent = [100 * (1 - sent / theirs) for (_, sent), (_, theirs) in needed]
    return Saving(
        estimate([theirs / rounds for (rounds, _), (theirs, _) in needed], confidence),
        estimate([value for value in percent if not math.isnan(value)], confidence),
        any(target not in other.targets for _, other in pairs),
    )


def _needed(run: Result, target: str) -> tuple[float, float]:
    """Rounds and bytes to the target; where a run did not get there, all that it took."""
    return run.targets.get(target, (run.rounds, run.total_bytes))
