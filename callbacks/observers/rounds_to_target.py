"""RoundsToTarget: an observer that reports the rounds and bytes after which a metric first reached a target."""

from typing import Any, Literal

from flcog.core.monitor import Monitor
from flcog.core.text import human
from flcog.method import Callback, Run

COSTS = {"comm/up_bytes_total": "up_bytes", "comm/down_bytes_total": "down_bytes", "time/simulated": "simulated"}
"""The columns of a round that are repeated beside its number. A private run withholds them."""


class RoundsToTarget(Callback):
    """Prints after how many rounds and bytes a metric first reached a target, and adds both to that round's row.

    For a target of 0.8 on test accuracy the columns are ``to_accuracy_0.8/rounds``, ``to_accuracy_0.8/up_bytes`` and
    ``to_accuracy_0.8/down_bytes``, only in the row of that round, and ``to_accuracy_0.8/simulated`` with the simulated seconds in runs with
    ``SystemModel``. A run with ``DPFedAvg`` has only the first column, because bytes and times tell of its cohorts. List the observer once
    for each target.

    Args:
        target: the value to reach; 0.8 for an accuracy of 80 %.
        monitor: the metric, by its name in ``metrics.csv``. By default the task's main one (accuracy, macro-AP or mse), on the
            test set if there is one.
        mode: whether the metric reaches the target from below (max) or from above (min). By default losses and errors come
            from above.
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
        column = f"to_{name.removeprefix('test/').replace('/', '_')}_{self.target:g}"
        metrics[f"{column}/rounds"] = round
        reached = {new: metrics[old] for old, new in COSTS.items() if old in metrics}
        metrics |= {f"{column}/{new}": value for new, value in reached.items()}
        if run.processes.is_first:
            after = [human(int(reached[f"{way}_bytes"])) + f" {way}" for way in ("up", "down") if f"{way}_bytes" in reached]
            after += [f"{reached['simulated']:,.0f} simulated seconds"] if "simulated" in reached else []
            print(f"{name} reached {self.target:g} in round {round}{', after ' * bool(after)}{' and '.join(after)}", flush=True)

    def on_fit_end(self, run: Run) -> None:
        if run.processes.is_first and self.reached_in is None:
            print(f"{self.monitor or 'the main metric'} did not reach {self.target:g} in {run.round} rounds", flush=True)

    def state_dict(self) -> dict[str, Any]:
        return {"reached_in": self.reached_in}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reached_in = state.get("reached_in")
