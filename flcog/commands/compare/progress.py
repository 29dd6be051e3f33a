"""Shows the remaining runs, rounds and time of a comparison, and on a terminal also the table so far."""

import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from flcog.commands.compare.plan import Cell
from flcog.core.text import clock, seconds

Rows = tuple[list[str], list[list[str]]]
"""A table's header and rows."""


class Progress:
    """Prints the remaining work at the end of each run. On a terminal the table and the remaining work are updated continuously.

    Args:
        runs: all cells of the table.
        todo: the unfinished cells.
        rounds: the total number of rounds by cell name, if known.
        in_hand: returns the cells that are being trained.
        filled: returns the table with the results so far.
    """

    def __init__(
        self,
        runs: Sequence[Cell],
        todo: Sequence[Cell],
        rounds: Mapping[str, int],
        in_hand: Callable[[], Sequence[Cell]],
        filled: Callable[[], Rows],
    ) -> None:
        self._runs, self._rounds, self._in_hand, self._filled = runs, rounds, in_hand, filled
        self._before = {cell.name: cell.rounds_before for cell in todo}
        """Rounds that were done before, or come from another run."""
        self._ended: dict[str, int] = {}
        """The number of rounds that each ended run trained. A run that failed or diverged trains no more."""
        self._began = time.monotonic()
        self._table: RenderableType = Text("")
        console = Console()
        self._live = Live(get_renderable=self._render, console=console, transient=True, refresh_per_second=1)
        self._on_terminal = console.is_interactive and not console.is_jupyter

    def __enter__(self) -> "Progress":
        if self._on_terminal and self._before:
            self._draw()
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def tell(self, cell: Cell, outcome: str, took: float) -> None:
        """Print the outcome of a run, its time in seconds, and the remaining work."""
        self._ended[cell.name] = self._trained(cell)
        rest = "" if self._on_terminal or len(self._ended) == len(self._before) else f"; {self._remaining()}"
        print(f"[{self._count}/{len(self._runs)}] {cell.name}: {outcome} ({seconds(took)}){rest}", flush=True)
        if self._on_terminal:
            self._draw()

    @property
    def _count(self) -> int:
        """The number of runs that have ended."""
        return len(self._runs) - len(self._before) + len(self._ended)

    def _remaining(self) -> str:
        """Rounds done of those to be trained, and the time that the others will take at the pace so far."""
        new = {name: max(0, self._rounds.get(name, 1) - before) for name, before in self._before.items()} | self._ended
        done = sum(self._ended.values())
        for cell in self._in_hand():
            if cell.name in new and cell.name not in self._ended:
                done += min(new[cell.name], self._trained(cell))
        total, elapsed = sum(new.values()), time.monotonic() - self._began
        left = f", {clock(elapsed * (total - done) / done)} left" if done else ""
        return f"{done:,} of {total:,} rounds in {clock(elapsed)}{left}"

    def _trained(self, cell: Cell) -> int:
        return max(0, len(cell.history()) - self._before[cell.name])

    def _draw(self) -> None:
        header, rows = self._filled()
        table = RichTable(*map(escape, header), box=None, pad_edge=False, header_style="dim")
        for row in rows:
            table.add_row(*(escape(str(value)) for value in row))
        self._table = table

    def _render(self) -> RenderableType:
        return Group("", self._table, f"\n{self._count} of {len(self._runs)} runs, {self._remaining()}")
