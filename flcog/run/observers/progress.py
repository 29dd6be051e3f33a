"""The observer that shows how far a run is."""

import html
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn

from flcog.core.checks import at_least
from flcog.core.monitor import headline, is_personal, main_metric
from flcog.core.text import clock, figure, seconds
from flcog.method import Callback, Run

LINE = 80
"""The columns of a plain line: editors and web pages wrap longer lines."""

REFRESHES_PER_SECOND = 5
"""A thread draws the terminal's line this often, at 1 to 2 ms each, however short the rounds are; a notebook's bar is sent as often."""

LONG = 1.0
"""After this many seconds of a round the live line names its phase and counts its clients."""

Look = Callable[[int], tuple[int, float, str]]
"""``look(width)``: the number of rounds done, the same with the part of the round in hand, and figures in at most this width."""


class TerminalBar(Progress):
    """One line, redrawn in place."""

    def __init__(self, console: Console, look: Look, rounds: int) -> None:
        columns = (
            TextColumn("round {task.fields[round]}/{task.total}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
        )
        super().__init__(*columns, console=console, expand=True, refresh_per_second=REFRESHES_PER_SECOND)
        self._look = look
        self._width = console.width - len(f"round {rounds}/{rounds}") - 4  # between the columns, and a bit of a bar
        self.add_task("", total=rounds)
        self.start()

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            task.fields["round"], task.completed, task.fields["figures"] = self._look(self._width)
        return super().get_renderables()


class NotebookBar:
    """One output of the cell, replaced in place; IPython alone draws it, no widget is needed."""

    def __init__(self, look: Look, rounds: int) -> None:
        from IPython.display import HTML, display

        self._html: Any = HTML
        self._look, self._rounds, self._sent = look, rounds, 0.0
        self._handle: Any = display(HTML(""), display_id=True)
        self.stop()

    def show(self) -> None:
        if time.monotonic() - self._sent >= 1 / REFRESHES_PER_SECOND:
            self.stop()

    def stop(self) -> None:
        self._sent = time.monotonic()
        round, done, figures = self._look(200)
        bar = f'<progress value="{done}" max="{self._rounds}" style="width: 16em; vertical-align: middle"></progress>'
        self._handle.update(self._html(f"<div>round {round}/{self._rounds} {bar} {html.escape(figures)}</div>"))


class ProgressBar(Callback):
    """Shows the round, the last test score and loss, the training loss, seconds a round and the time left. Every run has one.

    One live line on a terminal or in a notebook; elsewhere (a CI log, ``nohup``) some plain lines over the run. The live line of a
    longer round has its phase, and counts the clients that are done. Seconds a round are left out where a line would be too long.

    Args:
        enabled: whether to show anything.
        num_lines: about how many lines to print where there is no terminal.
    """

    def __init__(self, enabled: bool = True, num_lines: int = 20) -> None:
        at_least(self, 1, num_lines=num_lines, hint="enabled=false shows nothing")
        self.enabled, self.num_lines = enabled, num_lines
        self._live: TerminalBar | NotebookBar | None = None

    def on_fit_start(self, run: Run) -> None:
        self._stop()
        self._score, self._began = "", time.perf_counter()
        self._durations: deque[float] = deque(maxlen=20)
        self._round, self._pace, self._figures = run.round, 0.0, list[str]()

    def on_round_start(self, run: Run, round: int, cohort: list[int]) -> None:
        # Not before the first round, because other observers still print the run's description until then.
        if not self._durations and self._shows(run):
            console, look = Console(), partial(self._look, run)
            if console.is_jupyter:
                self._live = NotebookBar(look, run.settings.rounds)
                run.progress.listener = self._live.show
            elif console.is_interactive:
                self._live = TerminalBar(console, look, run.settings.rounds)
        if len(self._durations) < 2:  # trackers start after the first round, which is no part of the second
            self._began = time.perf_counter()

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        self._score = score(metrics)

    def on_round_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        if not self._shows(run):
            return
        now = time.perf_counter()
        self._durations.append(now - self._began)
        loss = f"train loss {figure(metrics['train/loss'])}" if "train/loss" in metrics else ""
        shown = run.model.log.in_progress_bar & metrics.keys()
        self._figures = [self._score, loss, *(f"{name.replace('/', ' ')} {figure(metrics[name])}" for name in sorted(shown))]
        self._began, self._round, self._pace = now, round, sum(self._durations) / len(self._durations)
        if self._live is not None:
            return
        every = math.ceil(run.settings.rounds / self.num_lines)
        if len(self._durations) == 1 or round % every == 0 or round == run.settings.rounds or run.should_stop:
            width = len(str(run.settings.rounds))
            count = f"round {round:{width}}/{run.settings.rounds}  "
            print(count + self._look(run, LINE - len(count))[2], flush=True)

    def on_fit_end(self, run: Run) -> None:
        self._stop()

    def on_exception(self, run: Run, exception: BaseException) -> None:
        self._stop()

    def _shows(self, run: Run) -> bool:
        return self.enabled and run.processes.is_first

    def _look(self, run: Run, width: int) -> tuple[int, float, str]:
        """How far the run is now. A terminal's bar asks in a thread of its own."""
        progress, elapsed, to_do = run.progress, time.perf_counter() - self._began, run.settings.rounds - self._round
        done = progress.done / progress.clients if progress.clients and to_do else 0.0
        pace = elapsed / done if done and elapsed > self._pace else self._pace
        left = f"{clock(max(0.0, pace * to_do - elapsed))} left" if pace else ""
        if elapsed >= LONG and to_do:
            count = f" {progress.done:.0f}/{progress.clients}" if round(progress.done) < progress.clients else ""
            parts = [*self._figures[:1], progress.phase + count + " clients" * bool(count and width > LINE), left]
        else:
            parts = [*self._figures, f"{seconds(pace)}/round" if pace else "", left]
            for least in (-2, 1):  # the time left tells as much as the pace, and the score more than the training loss
                if len("  ".join(parts)) > width:
                    del parts[least]
        return self._round, self._round + done, "  ".join(filter(None, parts))

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def score(metrics: Mapping[str, float]) -> str:
    """Format the main metric of a run, and the loss on the same set, or the spread over the clients' own models.

    >>> score({"val/accuracy": 0.7, "val/loss": 0.9, "test/accuracy": 0.75, "test/loss": 0.8})
    'test accuracy 0.7500, loss 0.8000'
    """
    name = main_metric(metrics)
    if name is None:
        return ""
    split, _, measure = name.partition("/")
    text = f"{split} {measure.removesuffix('_mean').replace('_', ' ')} {headline(metrics, name)}"
    of_the_same = measure != "loss" and not is_personal(name) and f"{split}/loss" in metrics
    return f"{text}, loss {figure(metrics[f'{split}/loss'])}" if of_the_same else text
