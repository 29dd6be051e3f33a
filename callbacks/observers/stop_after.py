"""StopAfter: an observer that ends a run early, so that it can be resumed later."""

from flcog.core.checks import at_least
from flcog.method import Callback, Run


class StopAfter(Callback):
    """Ends the run after a round. Without this observer, or with a later round, ``--ckpt_path last`` trains the other rounds.

    Unlike in a run with fewer ``trainer.rounds``, these rounds are those of the whole run, to the last bit, also if a schedule of
    learning rates or a privacy budget depends on the number of rounds.

    Args:
        round: the last round, counted from 1.

    Example:
        >>> StopAfter(round=10).round
        10
    """

    def __init__(self, round: int) -> None:
        at_least(self, 1, round=round)
        self.round = round

    def on_fit_start(self, run: Run) -> None:
        self._decide(run)  # a run that had stopped remains stopped

    def on_round_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        self._decide(run)

    def _decide(self, run: Run) -> None:
        run.should_stop = run.should_stop or run.round >= self.round
