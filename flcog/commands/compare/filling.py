"""Fills a table: trains the unfinished runs, and shows the remaining runs, rounds and time, on a terminal also the table so far."""

import signal
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table as RichTable

from flcog.commands.compare.launcher import Ended, Launcher, StopEarly
from flcog.commands.compare.results import best_of, main_of
from flcog.commands.compare.runs import Run
from flcog.commands.compare.settings import check_settings, fault, resolve
from flcog.commands.compare.table import Table
from flcog.core import signals
from flcog.core.output import never_failing
from flcog.core.text import clock, figure, seconds

Show = Callable[[], Sequence[Sequence[str]]]
"""Returns the lines of the table so far, the header first."""


@never_failing()
def fill(
    table: Table, runs: Sequence[Run], launcher: Launcher, show: Show, stop_early: StopEarly = lambda run: False
) -> list[Ended]:
    """Train the unfinished runs and print the result of each. Returns the runs that failed."""
    for run in runs:
        check_settings(run)
    if (slip := fault(runs[0])) and all(map(fault, runs)):
        raise ValueError(f"{runs[0].name}: {slip}")
    todo = [run for run in runs if not run.finished]
    print(f"{len(runs)} run{'s' * (len(runs) != 1)}, {len(runs) - len(todo)} of them finished before", flush=True)
    failed, before = [], signals.answer(launcher.stop)
    try:
        with Progress(runs, todo, launcher, show) as progress:
            for ended in launcher.run(todo, stop_early):
                progress.tell(ended, ended.error or outcome(table, ended.run))
                failed += [ended] if ended.error else []
    finally:
        signals.put_back(before)
    finished = sum(run.finished for run in runs)
    if launcher.signal and finished < len(runs):
        name = signals.name(launcher.signal)
        print(
            f"\nstopped by {name}, {finished} of {len(runs)} runs finished. The same command continues the others\n", flush=True
        )
        raise KeyboardInterrupt if launcher.signal == signal.SIGINT else SystemExit(signals.EXIT_STATUS)
    return failed


def outcome(table: Table, run: Run) -> str:
    """The best and the last score of a run that has ended."""
    history = run.history
    metric = next(view.metric for view in table.views.values() if view.column == run.column) or main_of(history)
    values = [row[metric] for row in history if metric in row] if metric else []
    scores = [f"best {figure(best_of(metric, values))}, last {figure(values[-1])}"] if metric and values else []
    state = ["diverged"] if run.diverged else [] if run.finished else ["stopped early"]
    return ", ".join(state + scores) or "no evaluation"


class Progress:
    """Prints the remaining work at the end of each run, and the throughput at the end. On a terminal it also shows the table so far."""

    def __init__(self, runs: Sequence[Run], todo: Sequence[Run], launcher: Launcher, show: Show) -> None:
        self._runs, self._launcher, self._show = runs, launcher, show
        self._before = {run: len(run.history) if run.begun else 0 for run in todo}
        self._rounds = {run: config["trainer"]["rounds"] if (config := resolve(run)) else 1 for run in todo}
        self._trained: dict[Run, int] = {}
        """The number of rounds that each ended run trained. A run that failed or diverged trains no more."""
        self._began = time.monotonic()
        console = Console()
        self._live = Live(get_renderable=self._render, console=console, transient=True, refresh_per_second=0.5)
        self._on_terminal = console.is_interactive and not console.is_jupyter and bool(todo)

    def __enter__(self) -> "Progress":
        if self._on_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if rounds := sum(self._trained.values()):
            took, runs = time.monotonic() - self._began, len(self._trained)
            pace = f"{runs * 3600 / took:,.0f} runs and {rounds * 3600 / took:,.0f} rounds an hour"
            print(f"{runs} runs with {rounds:,} rounds in {clock(took)}: {pace}", flush=True)

    def tell(self, ended: Ended, outcome: str) -> None:
        """Print the outcome of a run, its time in seconds, and the remaining work."""
        self._trained[ended.run] = self._new_rounds(ended.run)
        rest = "" if self._on_terminal or len(self._trained) == len(self._before) else f"; {self._remaining()}"
        print(f"[{self._count}/{len(self._runs)}] {ended.run.name}: {outcome} ({seconds(ended.seconds)}){rest}", flush=True)

    @property
    def _count(self) -> int:
        """The number of runs that have ended."""
        return len(self._runs) - len(self._before) + len(self._trained)

    def _new_rounds(self, run: Run) -> int:
        return max(0, len(run.history) - self._before[run])

    def _remaining(self) -> str:
        """Rounds done of those to be trained, and the time that the others will take at the pace so far."""
        total = sum(self._trained.get(run, max(0, self._rounds[run] - before)) for run, before in self._before.items())
        done = sum(self._trained.values()) + sum(map(self._new_rounds, self._launcher.running))
        elapsed = time.monotonic() - self._began
        left = f", {clock(elapsed * max(0, total - done) / done)} left" if done else ""
        return f"{done:,} of {total:,} rounds in {clock(elapsed)}{left}"

    def _render(self) -> Group:
        header, *rows = self._show()
        table = RichTable(*map(escape, header), box=None, pad_edge=False, header_style="dim")
        for row in rows:
            table.add_row(*map(escape, row))
        return Group("", table, f"\n{self._count} of {len(self._runs)} runs, {self._remaining()}")
