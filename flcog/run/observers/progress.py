"""The observer that shows how far a run is."""

import math
import time
from collections import deque

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from flcog.core.checks import at_least
from flcog.core.monitor import main_metric
from flcog.core.text import clock, figure, label, seconds
from flcog.hooks import Callback, Run

REFRESHES_PER_SECOND = 5
"""A thread draws the line this often, at 1 to 2 ms each, however short the rounds are."""


class ProgressBar(Callback):
    """Shows the round, the last test score, the training loss, seconds a round and the time left. Every run has one.

    One live line on a terminal; elsewhere (a CI log, ``nohup``, a notebook) some plain lines over the run.

    Args:
        enabled: whether to show anything.
        num_lines: about how many lines to print where there is no terminal.

    Example:
        >>> ProgressBar(num_lines=5).num_lines
        5
    """

    def __init__(self, enabled: bool = True, num_lines: int = 20) -> None:
        at_least(self, 1, num_lines=num_lines, hint="enabled=false shows nothing")
        self.enabled, self.num_lines = enabled, num_lines
        self._live: Progress | None = None

    def on_fit_start(self, run: Run) -> None:
        self._stop()
        self._score, self._began = "", time.perf_counter()
        self._durations: deque[float] = deque(maxlen=20)

    def on_round_start(self, run: Run, round: int, cohort: list[int]) -> None:
        # Not before the first round: until then others may still print what the run is.
        if self._live is None and self._shows(run) and (console := Console()).is_interactive:
            self._live = Progress(
                TextColumn("round {task.completed}/{task.total}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[figures]}"),
                console=console,
                expand=True,
                refresh_per_second=REFRESHES_PER_SECOND,
            )
            self._task = self._live.add_task("", total=run.settings.rounds, completed=run.round, figures="")
            self._live.start()

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        name = main_metric(metrics)
        self._score = "" if name is None else f"{label(name)} {figure(metrics[name])}"

    def on_round_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        if not self._shows(run):
            return
        now = time.perf_counter()
        self._durations.append(now - self._began)
        self._began = now
        if self._live is not None:
            self._live.update(self._task, completed=round, figures=self._figures(run, round, metrics))
            return
        every = math.ceil(run.settings.rounds / self.num_lines)
        if len(self._durations) == 1 or round % every == 0 or round == run.settings.rounds or run.should_stop:
            width = len(str(run.settings.rounds))
            print(f"round {round:{width}}/{run.settings.rounds}  {self._figures(run, round, metrics)}", flush=True)

    def on_fit_end(self, run: Run) -> None:
        self._stop()

    def on_exception(self, run: Run, exception: BaseException) -> None:
        self._stop()

    def _shows(self, run: Run) -> bool:
        return self.enabled and run.processes.is_first

    def _figures(self, run: Run, round: int, metrics: dict[str, float]) -> str:
        pace = sum(self._durations) / len(self._durations)
        loss = f"loss {figure(metrics['train/loss'])}" if "train/loss" in metrics else ""
        left = clock(pace * (run.settings.rounds - round))
        return "  ".join(part for part in (self._score, loss, f"{seconds(pace)}/round", f"{left} left") if part)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
