"""RoundsToTarget: an observer that reports the rounds and bytes after which a metric first reached a target."""

from typing import Any, Literal

from flcog.core.monitor import Monitor
from flcog.core.text import human
from flcog.method import Callback, Run


class RoundsToTarget(Callback):
    """Prints after how many rounds and bytes a metric first reached a target, and adds both to that round's row.

    For a target of 0.8 on test accuracy the columns are ``to_accuracy_0.8/rounds``, ``to_accuracy_0.8/up_bytes`` and
    ``to_accuracy_0.8/down_bytes``, only in the row of that round, and ``to_accuracy_0.8/simulated`` with the simulated seconds in runs with
    ``SystemModel``. List the observer once for each target.

    Args:
        target: the value to reach.
        monitor: the metric, by its name in ``metrics.csv``. By default the task's main one (accuracy, macro-AP or mse), on the
            test set if there is one.
        mode: whether the metric reaches the target from below (max) or from above (min). By default losses and errors come
            from above.

    Example:
        >>> RoundsToTarget(target=0.8).target
        0.8
    """

    reached_in: int | None = None
    """The round that reached it."""

    def __init__(self, target: float, monitor: str | None = None, mode: Literal["max", "min"] | None = None) -> None:
        self.target, self.monitor, self.mode = target, monitor, mode
        self._monitor = Monitor(monitor, mode, selecting=False)

    def on_fit_start(self, run: Run) -> None:
        self._monitor = Monitor(self.monitor, self.mode, selecting=False)
        self._monitor.check(run.settings.eval_every, self)
        if run.round == 0:
            self.load_state_dict({})

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        name = self._monitor.find(metrics)
        if name is None or self.reached_in is not None or not self._monitor.gain(name, metrics[name], over=self.target) >= 0:
            return
        self.reached_in = round
        column, up, down = (
            f"to_{name.removeprefix('test/').replace('/', '_')}_{self.target:g}",
            run.ledger.total_up,
            run.ledger.total_down,
        )
        metrics |= {f"{column}/rounds": round, f"{column}/up_bytes": up, f"{column}/down_bytes": down}
        seconds = metrics.get("time/simulated")
        metrics |= {} if seconds is None else {f"{column}/simulated": seconds}
        if run.processes.is_first:
            simulated = "" if seconds is None else f" and {seconds:,.0f} simulated seconds"
            print(
                f"{name} reached {self.target:g} in round {round}, after {human(up)} up and {human(down)} down{simulated}",
                flush=True,
            )

    def on_fit_end(self, run: Run) -> None:
        if run.processes.is_first and self.reached_in is None:
            print(f"{self.monitor or 'the main metric'} did not reach {self.target:g} in {run.round} rounds", flush=True)

    def state_dict(self) -> dict[str, Any]:
        return {"reached_in": self.reached_in}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reached_in = state.get("reached_in")
