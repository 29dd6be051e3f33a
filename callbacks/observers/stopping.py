"""EarlyStopping and StopAfter: observers that end a run."""

import math
from typing import Any, Literal, NamedTuple

from flcog.core.checks import at_least
from flcog.core.monitor import Monitor
from flcog.method import Callback, Run


class Progress(NamedTuple):
    """The evaluations of a metric until now."""

    metric: str | None = None
    best: float | None = None
    best_round: int | None = None
    last: float | None = None
    waited: int = 0


class EarlyStopping(Callback):
    """Ends the run when a metric has stopped improving or has reached a threshold, and prints the reason.

    Args:
        monitor: the metric, by its name in ``metrics.csv``. By default the task's main one (accuracy, macro-AP or mse), on the
            validation set if there is one, and otherwise on the test set.
        mode: whether it should grow (max) or fall (min). By default losses and errors should fall, and all others grow.
        patience: number of successive evaluations without improvement (``trainer.eval_every`` rounds apart) that ends the run.
        min_delta: a value must be better than the best one by more than this to count as an improvement.
        stopping_threshold: the run ends at the first evaluation that reaches this value. None for no threshold.
        check_finite: whether the run ends when the metric becomes NaN or infinite, which otherwise is no improvement.

    In YAML::

        callbacks+:
          - class_path: flcog.callbacks.EarlyStopping
            init_args: {patience: 5}
    """

    _seen = Progress()

    def __init__(
        self,
        monitor: str | None = None,
        mode: Literal["max", "min"] | None = None,
        patience: int = 10,
        min_delta: float = 0.0,
        stopping_threshold: float | None = None,
        check_finite: bool = True,
    ) -> None:
        at_least(self, 1, patience=patience)
        at_least(self, 0, min_delta=min_delta)
        self.monitor, self.mode, self.patience, self.min_delta = monitor, mode, patience, min_delta
        self.stopping_threshold, self.check_finite = stopping_threshold, check_finite
        self._monitor = Monitor(monitor, mode)

    def on_fit_start(self, run: Run) -> None:
        self._monitor = Monitor(self.monitor, self.mode)
        self._monitor.check(run.settings.eval_every, self)
        if run.round == 0 or not self._monitor.watches(self._seen.metric or ""):
            self._seen = Progress()
        self._decide(run)  # a run that had stopped remains stopped, unless its patience is now larger

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        name = self._monitor.find(metrics)
        if name is None:
            return
        seen, value = self._seen if name == self._seen.metric else Progress(name), metrics[name]
        # NaN is not an improvement, because every comparison with it is false.
        if value == value and (seen.best is None or self._monitor.gain(name, value, over=seen.best) > self.min_delta):
            self._seen = Progress(name, value, round, value)
        else:
            self._seen = seen._replace(last=value, waited=seen.waited + 1)
        self._decide(run)

    def _decide(self, run: Run) -> None:
        # All processes take the same decision, even if a metric's last digit differs between machines.
        reason = run.processes.agree(self._reason())
        if reason is not None:
            run.should_stop = True
            if run.processes.is_first:
                print(f"EarlyStopping ends the run after round {run.round}: {reason}", flush=True)

    def _reason(self) -> str | None:
        metric, best, best_round, last, waited = self._seen
        if metric is None or last is None:
            return None
        if self.check_finite and not math.isfinite(last):
            return f"{metric} is {last}"
        enough = self.stopping_threshold
        if enough is not None and self._monitor.gain(metric, last, over=enough) >= 0:
            return f"{metric} is {last:.4g}, which reaches the threshold of {enough:g}"
        if waited < self.patience:
            return None
        if best is None:
            return f"{metric} was NaN at {waited} evaluations in a row"
        return f"{metric} has not improved on {best:.4g} of round {best_round} for {waited} evaluation{'s' * (waited != 1)}"

    def state_dict(self) -> dict[str, Any]:
        return self._seen._asdict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seen = Progress(**state)


class StopAfter(Callback):
    """Ends the run after a round. Without this observer, or with a later round, ``--ckpt_path last`` trains the other rounds.

    Unlike in a run with fewer ``trainer.rounds``, these rounds are those of the whole run, to the last bit, also if a schedule of
    learning rates or a privacy budget depends on the number of rounds.

    Args:
        round: the last round, counted from 1.
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
