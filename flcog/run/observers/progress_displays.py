"""Where progress is shown: one live line on a terminal, one live bar in a notebook."""

import html
import time
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

REFRESHES_PER_SECOND = 5
"""A thread draws the terminal's line this often, at 1 to 2 ms each, however short the rounds are; a notebook's bar is sent as often."""


class Display(Protocol):
    """One live line that is drawn again and again."""

    width: int
    """Characters that fit beside the round."""

    def update(self, done: int, figures: str) -> None:
        """Show the number of finished rounds and these figures."""

    def stop(self) -> None:
        """Leave the line as it is, for good."""


def live_display(done: int, rounds: int) -> Display | None:
    """The display that suits this process's output; None where only plain lines do, as in a log."""
    console = Console()
    if console.is_jupyter:
        return NotebookBar(done, rounds)
    return TerminalBar(console, done, rounds) if console.is_interactive else None


class TerminalBar:
    """One line, redrawn in place."""

    def __init__(self, console: Console, done: int, rounds: int) -> None:
        self.width = console.width - len(f"round {rounds}/{rounds}") - 4  # between the columns, and a bit of a bar
        self._live = Progress(
            TextColumn("round {task.completed}/{task.total}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            console=console,
            expand=True,
            refresh_per_second=REFRESHES_PER_SECOND,
        )
        self._task = self._live.add_task("", total=rounds, completed=done, figures="")
        self._live.start()

    def update(self, done: int, figures: str) -> None:
        self._live.update(self._task, completed=done, figures=figures)

    def stop(self) -> None:
        self._live.stop()


class NotebookBar:
    """One output of the cell, replaced in place; IPython alone draws it, no widget is needed."""

    width = 200

    def __init__(self, done: int, rounds: int) -> None:
        self._rounds, self._shown = rounds, time.monotonic()
        self._latest = self._page(done, "")
        from IPython.display import HTML, display

        self._html: Any = HTML
        self._handle: Any = display(HTML(self._latest), display_id=True)

    def update(self, done: int, figures: str) -> None:
        self._latest = self._page(done, figures)
        if time.monotonic() - self._shown >= 1 / REFRESHES_PER_SECOND:
            self._send()

    def stop(self) -> None:
        self._send()

    def _send(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self._html(self._latest))

    def _page(self, done: int, figures: str) -> str:
        bar = f'<progress value="{done}" max="{self._rounds}" style="width: 16em; vertical-align: middle"></progress>'
        return f"<div>round {done}/{self._rounds} {bar} {html.escape(figures)}</div>"
