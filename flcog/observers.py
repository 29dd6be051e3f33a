"""Observers that every run has: checkpoints."""

from pathlib import Path
from typing import Any, Literal

from flcog.hooks import Callback


class Checkpoint(Callback):
    """Writes ``checkpoints/last.ckpt`` after every round, ``best.ckpt`` whenever a metric improves, and one every n rounds.

    Args:
        monitor: the metric that decides which round is best; None keeps no best one.
        mode: whether its largest or its smallest value is best.
        every_n_rounds: rounds between versions of ``last.ckpt``; 0 writes none but at the end. A run that dies goes on from here.
        keep_every_n_rounds: rounds between checkpoints that are kept (``round-000010.ckpt``); 0 for none.
    """

    def __init__(
        self,
        monitor: str | None = "test/accuracy",
        mode: Literal["max", "min"] = "max",
        every_n_rounds: int = 1,
        keep_every_n_rounds: int = 0,
    ) -> None:
        for name, value in (("every_n_rounds", every_n_rounds), ("keep_every_n_rounds", keep_every_n_rounds)):
            if value < 0:
                raise ValueError(f"{name} must be at least 0; got {value}")
        if mode not in ("max", "min"):
            raise ValueError(f"mode must be max or min; got {mode!r}")
        self.monitor, self.mode, self.every_n_rounds, self.keep_every_n_rounds = (
            monitor,
            mode,
            every_n_rounds,
            keep_every_n_rounds,
        )
        self.best: float | None = None
        self.best_round: int | None = None
        self._pinned: dict[str, list[str]] = {}

    def on_evaluation_end(self, trainer: Any, round: int, metrics: dict[str, float]) -> None:
        value = metrics.get(self.monitor) if self.monitor else None
        if value is None or value != value:
            return
        if self.best is None or (value > self.best if self.mode == "max" else value < self.best):
            self.best, self.best_round = value, round
            trainer.save_checkpoint(self._directory(trainer) / "best.ckpt", resumable=False)

    def on_round_end(self, trainer: Any, round: int, metrics: dict[str, float]) -> None:
        last_round = round >= trainer.rounds or trainer.should_stop
        if last_round or (self.every_n_rounds and round % self.every_n_rounds == 0):
            if self.keep_every_n_rounds and round % self.keep_every_n_rounds == 0:
                kept = self._directory(trainer) / f"round-{round:06d}.ckpt"
                trainer.save_checkpoint(kept)
                self._pinned[kept.name] = sorted(set(trainer.states.files.values()))
            trainer.save_checkpoint(self._directory(trainer) / "last.ckpt")
            if trainer.is_first:
                pinned = {name for names in self._pinned.values() for name in names}
                trainer.states.prune(pinned | set(trainer.states.files.values()))

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_round": self.best_round, "pinned": self._pinned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.best, self.best_round, self._pinned = state["best"], state["best_round"], state["pinned"]

    @staticmethod
    def _directory(trainer: Any) -> Path:
        return Path(trainer.run_dir) / "checkpoints"


def default_observers(observers: list[Callback]) -> list[Callback]:
    """The user's observers, and a checkpoint where they name none."""
    if not any(isinstance(observer, Checkpoint) for observer in observers):
        observers = [*observers, Checkpoint()]
    return observers
