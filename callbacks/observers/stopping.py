"""EarlyStopping and StopAfter: observers that end a run."""

import math
from typing import Any, Literal

from flcog.core.checks import at_least
from flcog.core.monitor import Monitor
from flcog.method import Callback, Run


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

    Example:
        >>> EarlyStopping(monitor="test/accuracy", patience=5, stopping_threshold=0.9).patience
        5

    In YAML::

        callbacks+:
          - class_path: flcog.callbacks.EarlyStopping
            init_args: {patience: 5}
    """

    _metric: str | None = None
    _best: float | None = None
    _best_round: int | None = None
    _last: float | None = None
    _waited: int = 0

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
        if run.round == 0 or self.monitor not in (None, self._metric):
            self.load_state_dict({})
        self._decide(run)  # a run that had stopped remains stopped, unless its patience is now larger

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        name = self._monitor.find(metrics)
        if name is None:
            return
        if name != self._metric:
            self.load_state_dict({"metric": name})
        self._last = metrics[name]
        # NaN is not an improvement, because every comparison with it is false.
        if self._last == self._last and (
            self._best is None or self._monitor.gain(name, self._last, over=self._best) > self.min_delta
        ):
            self._best, self._best_round, self._waited = self._last, round, 0
        else:
            self._waited += 1
        self._decide(run)

    def _decide(self, run: Run) -> None:
        # All processes take the same decision, even if a metric's last digit differs between machines.
        reason = run.processes.agree(self._reason())
        if reason is not None:
            run.should_stop = True
            if run.processes.is_first:
                print(f"EarlyStopping ends the run after round {run.round}: {reason}", flush=True)

    def _reason(self) -> str | None:
        if self._metric is None or self._last is None:
            return None
        if self.check_finite and not math.isfinite(self._last):
            return f"{self._metric} is {self._last}"
        enough = self.stopping_threshold
        if enough is not None and self._monitor.gain(self._metric, self._last, over=enough) >= 0:
            return f"{self._metric} is {self._last:.4g}, which reaches the threshold of {enough:g}"
        if self._waited < self.patience:
            return None
        if self._best is None:
            return f"{self._metric} was NaN at {self._waited} evaluations in a row"
        waited = f"{self._waited} evaluation" + "s" * (self._waited != 1)
        return f"{self._metric} has not improved on {self._best:.4g} of round {self._best_round} for {waited}"

    def state_dict(self) -> dict[str, Any]:
        return {
            "metric": self._metric,
            "best": self._best,
            "best_round": self._best_round,
            "last": self._last,
            "waited": self._waited,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._metric, self._waited = state.get("metric"), int(state.get("waited", 0))
        self._last, self._best, self._best_round = state.get("last"), state.get("best"), state.get("best_round")


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
