"""The observer that writes checkpoints."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from flcog.core.checks import at_least
from flcog.core.monitor import Monitor
from flcog.core.signals import RunInterrupted, RunStopped
from flcog.method import Callback, Run
from flcog.run import checkpoint
from flcog.run.directory import BEST, LAST, kept_checkpoint


class Checkpoint(Callback):
    """Writes ``checkpoints/last.ckpt`` after every round, and ``best.ckpt`` whenever a metric improves. Every run has one.

    A killed run resumes from ``last.ckpt`` (``--ckpt_path last``); ``best.ckpt`` holds the model, to be evaluated. Clients'
    own models are in the folder ``clients`` beside it.

    Args:
        monitor: the metric that decides which round is best, as ``metrics.csv`` names it. By default the task's main one
            (accuracy, macro-AP or mse), on the validation set where there is one and else on the test set.
        mode: whether its largest (max) or its smallest (min) value is best. By default the smallest of losses and errors, the
            largest of all others.
        every_n_rounds: rounds between versions of ``last.ckpt``; 0 writes none but at the end, or when Ctrl-C stops the run.
        keep_every_n_rounds: rounds between checkpoints that are kept beside (``round-000010.ckpt``); 0 keeps none.
        enabled: whether to write checkpoints at all. Without them a run cannot be resumed.
    """

    best_metric: str | None = None
    best: float | None = None
    best_round: int | None = None
    best_model_path: str = ""
    """The file of the best round, as Lightning's ``ModelCheckpoint`` names it."""

    def __init__(
        self,
        monitor: str | None = None,
        mode: Literal["max", "min"] | None = None,
        every_n_rounds: int = 1,
        keep_every_n_rounds: int = 0,
        enabled: bool = True,
    ) -> None:
        at_least(self, 0, every_n_rounds=every_n_rounds, keep_every_n_rounds=keep_every_n_rounds)
        self.monitor, self.mode, self.every_n_rounds = monitor, mode, every_n_rounds
        self.keep_every_n_rounds, self.enabled = keep_every_n_rounds, enabled
        self._monitor = Monitor(monitor, mode)
        self._last_round: int | None = None
        """The round of the ``last.ckpt`` that this fit has written."""
        self._pinned: dict[Path, Collection[str]] = {}
        """The files of clients' states to which the checkpoints beside ``last.ckpt`` refer, once they are known."""

    def on_fit_start(self, run: Run) -> None:
        self._monitor, self._last_round, self._pinned = Monitor(self.monitor, self.mode), None, {}
        if run.round == 0:
            self.load_state_dict({})
        self.best_model_path = "" if self.best is None else str(run.directory / BEST)

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        name = self._monitor.find(metrics) if self.enabled else None
        if name is None or metrics[name] != metrics[name]:
            return
        if name != self.best_metric or self.best is None or self._monitor.gain(name, metrics[name], over=self.best) > 0:
            self.best_metric, self.best, self.best_round = name, metrics[name], round
            run.save(best := run.directory / BEST, resumable=False)
            self.best_model_path = str(best)
            self._pinned.pop(best, None)

    def on_round_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        if not self.enabled:
            return
        if self.keep_every_n_rounds and round % self.keep_every_n_rounds == 0:
            run.save(kept := kept_checkpoint(run.directory, round))
            self._pinned.pop(kept, None)
        is_last = round >= run.settings.rounds or run.should_stop
        if is_last or (self.every_n_rounds and round % self.every_n_rounds == 0):
            self._save_last(run)

    def _save_last(self, run: Run) -> None:
        last = run.directory / LAST
        for path in {*last.parent.glob("*.ckpt")} - self._pinned.keys() - {last}:
            self._pinned[path] = checkpoint.peek(path).get("clients", {}).values()
        run.save(last, pinned={name for names in self._pinned.values() for name in names})
        self._last_round = run.round

    def on_exception(self, run: Run, exception: BaseException) -> None:
        stopped = isinstance(exception, RunStopped | RunInterrupted)
        if self.enabled and stopped and run.round not in (0, self._last_round):
            self._save_last(run)  # on every process, because all processes have stopped after this round
        if run.processes.is_first and self._last_round is not None and (run.directory / LAST).is_file():
            command = run.next_command("fit", run.directory)
            print(f"\nThe run can go on after round {self._last_round}:\n  {command}\n", flush=True)
        elif run.processes.is_first and stopped:
            print("\nThe run was stopped before its first round was done: start it again\n", flush=True)

    def state_dict(self) -> dict[str, Any]:
        return {"metric": self.best_metric, "best": self.best, "round": self.best_round}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best_metric, self.best, self.best_round = state.get("metric"), state.get("best"), state.get("round")
