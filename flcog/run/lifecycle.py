"""The life of a training run: its rounds with their timing, signals, the writer's lock, and the calls of observers' hooks."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from lightning.fabric import Fabric

from flcog.core import signals
from flcog.core.signals import StopSignals
from flcog.core.text import figure
from flcog.core.users_code import place_in_users_code
from flcog.core.waiting import CoreWaiting
from flcog.core.writer_lock import WriterLock
from flcog.lightning.trainer import RoundsTrainer
from flcog.method import Callback, Note
from flcog.run.session import Session
from flcog.server import privacy
from flcog.server import round as rounds

ADDS_COLUMNS = ("on_evaluation_end", "on_round_metrics")
"""Hooks in which observers add columns to a round's metrics."""


class Lifecycle:
    """Surrounds a training run, from before it is opened until it has ended in any way.

    Inside the context signals are answered. At its end an error is reported to the observers, trackers are closed, and the lock is
    released. Observers are called on every process; the ``trainer`` among them calls Lightning's hooks.
    """

    def __init__(self, fabric: Fabric, observers: Sequence[Callback], trainer: RoundsTrainer) -> None:
        self._observers, self._trainer, self.lock = observers, trainer, WriterLock()
        self._run: Session | None = None
        self._stop = StopSignals(lambda text: signals.say(text) if fabric.is_global_zero else None)
        self._grows = False

    def __enter__(self) -> Self:
        self._stop.listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            if error is not None:
                self._observe("on_exception", error)
        finally:
            self._stop.in_rounds = False
            try:
                if self._run is not None:
                    self._run.trackers.close("success" if error is None else "failed")
                    self._trainer.profiler.describe()
            finally:
                self.lock.release()
                self._stop.leave()

    @contextmanager
    def rounds(self, run: Session, evaluate: Callable[[], dict[str, float]], num_sanity_val_steps: int) -> Iterator[None]:
        """Surround the rounds of a run. The metrics of the test before round 1, on ``num_sanity_val_steps`` batches, are discarded."""
        self._run, trainer = run, self._trainer
        privacy.begin(run.engine, run.server, run.paid)
        self._deliver_notes(run)
        self._observe("on_fit_start")
        with torch.autograd.set_detect_anomaly(trainer._detect_anomaly):
            if num_sanity_val_steps and run.round == 0:
                with trainer.sanity_check(run), run.evaluator.limited_to(num_sanity_val_steps):
                    evaluate()
            trainer.on_train_start(run)
            self._stop.in_rounds = True
            yield
        self._stop.in_rounds = False
        if run.round < run.settings.rounds and not privacy.affordable(run.engine, run.server):
            warnings.warn(f"stopped after round {run.round}: another round would exceed the privacy budget", stacklevel=3)
        run.record_clients()
        self._observe("on_fit_end")
        run.engine.hand_over(run.server, run.evaluated_params())

    def goes_on(self, run: Session) -> bool:
        """Whether another round follows: some are left, no observer has ended the run, and the privacy budget allows one."""
        return run.round < run.settings.rounds and not run.should_stop and privacy.affordable(run.engine, run.server)

    def train_round(self, run: Session, evaluate: Callable[[], dict[str, float]]) -> None:
        """Train and evaluate a round. A signal ends the run after it."""
        began, number, waiting = time.perf_counter(), run.round + 1, CoreWaiting()
        evaluated, profiler = run.settings.evaluates(number), self._trainer.profiler

        def on_selected(selection: Sequence[int]) -> None:
            run.record_spending()
            self._observe("on_round_start", number, selection)

        try:
            with profiler.profile("round"):
                row = rounds.advance(run.engine, run.server, evaluated, on_selected)
            self._trainer.end_clients(run.server.steps)
            # The price of the clients that have arrived is known now, before anything is released.
            run.record_spending()
            row["time/round"] = time.perf_counter() - began
            row |= waiting.column()
            if evaluated:
                began = time.perf_counter()
                run.progress.enter("evaluating")
                with profiler.profile("evaluation"):
                    row |= evaluate()
                row["time/evaluation"] = time.perf_counter() - began
            self._end_round(run, privacy.released(run.engine, run.server, row), evaluated)
        except Exception as error:
            if place_in_users_code(error) and not getattr(error, "__notes__", ()):  # clients' errors name the client, too
                error.add_note(f"in round {number}")
            raise
        signal = run.processes.largest(self._stop.number)  # all processes stop after the same round
        if signal and self.goes_on(run):
            raise self._stop.stop(signal, run.processes.is_first, run.round)

    def _end_round(self, run: Session, metrics: dict[str, float], evaluated: bool) -> None:
        if evaluated:
            self._observe("on_evaluation_end", run.round, metrics)
        self._observe("on_round_metrics", run.round, metrics)
        run.table.append(metrics)
        self._note_growth(run)
        run.record_executor()
        self._deliver_notes(run)
        self._observe("on_round_end", run.round, metrics)
        run.server.uploads.clear()
        run.trackers.log_metrics(metrics)  # last: a tracker that fails, or is killed while it tries, costs no round

    def _note_growth(self, run: Session) -> None:
        """Warn once of a loss that keeps growing, before it is infinite, where a run ends."""
        first, *last = [row.get("train/loss", math.nan) for row in (run.history[0], *run.history[-3:])]
        if not self._grows and 10 * abs(first) < last[0] < last[-1] == max(last):
            self._grows = True
            text = f"the training loss grows: it was {figure(first)} in the first round, and is {figure(last[-1])}. Lower the learning rate"
            run.engine.notes.add(Note("warning", f"{text}, or clip gradients (`flcog methods` lists methods that do)"))

    def _deliver_notes(self, run: Session) -> None:
        for note in run.engine.notes.undelivered():
            self._observe("on_note", note)

    def _observe(self, hook: str, *args: Any) -> None:
        if self._run is not None:
            for observer in self._observers:
                getattr(observer, hook)(self._run, *args)
                if hook in ADDS_COLUMNS:  # at once, so that no later observer decides by a column that is withheld
                    privacy.withhold(self._run.engine, args[1])
