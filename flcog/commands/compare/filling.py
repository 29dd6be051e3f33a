"""Fills a table: takes finished runs, also from other tables, and starts the remaining runs."""

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from flcog.commands.compare.folder import finished_runs
from flcog.commands.compare.plan import Cell
from flcog.commands.compare.progress import Progress, Rows
from flcog.commands.compare.resolved import Config, identity, resolve
from flcog.commands.compare.results import decimals, number, percent_scale
from flcog.commands.compare.saved_results import last_result
from flcog.commands.compare.settings_of_runs import check_settings
from flcog.core import signals
from flcog.core.files import short
from flcog.core.output import never_failing


class Launcher(Protocol):
    """Trains runs, on this machine or on others."""

    signal: int

    def run(self, todo: Sequence[Cell]) -> Iterator[tuple[Cell, float]]: ...

    def in_hand(self) -> list[Cell]: ...

    def stop(self, number: int, frame: FrameType | None, /) -> None: ...


Known = dict[str, Path]
"""Finished runs by their identities."""


@never_failing()
def fill(runs: Sequence[Cell], launcher: Callable[[Known], Launcher], root: Path, filled: Callable[[], Rows]) -> list[Cell]:
    """Train the unfinished runs and print the result of each. Returns the failed cells.

    Args:
        runs: the cells of the table.
        launcher: makes the launcher, which does not train known runs again.
        root: the folder of all tables, where the same runs may be finished.
        filled: returns the table with the results so far.
    """
    for cell in runs:
        cell.files.claim()
        check_settings(cell)
    done = sum(cell.finished for cell in runs)
    print(f"{len(runs)} run{'s' * (len(runs) != 1)}, {done} of them finished before", flush=True)
    known, rounds = _prepare(runs, root) if done < len(runs) else ({}, {})
    todo, runner = [cell for cell in runs if not cell.finished], launcher(known)
    before = signals.answer(runner.stop)
    try:
        with Progress(runs, todo, rounds, runner.in_hand, filled) as progress:
            for cell, took in runner.run(todo):
                progress.tell(cell, _outcome(cell), took)
                if cell.error and not cell.busy and not rounds and cell is not todo[-1]:
                    print("The other runs are not started, because no configuration of theirs can be read", flush=True)
                    break
    finally:
        signals.put_back(before)
    finished = sum(cell.finished for cell in runs)
    if runner.signal and finished < len(runs):
        print(
            f"\nstopped by {signals.name(runner.signal)}, {finished} of {len(runs)} runs finished. The same command continues the others\n",
            flush=True,
        )
        raise KeyboardInterrupt if runner.signal == signal.SIGINT else SystemExit(signals.EXIT_STATUS)
    return [cell for cell in todo if cell.error]


def known_runs(runs: Sequence[Cell], root: Path) -> tuple[Known, dict[str, Config]]:
    """Give the cells their identities. Returns all finished runs below ``root`` by identity, and the cells' configurations by name."""
    configs = resolve(runs)
    for cell in runs:
        cell.identity = identity(configs[cell.name]) if cell.name in configs else ""
    return finished_runs(root), configs


def _prepare(runs: Sequence[Cell], root: Path) -> tuple[Known, dict[str, int]]:
    """Take finished runs of other tables.

    Returns all finished runs by identity, and the number of rounds of each cell.
    """
    known, configs = known_runs(runs, root)
    for cell in runs:
        if not cell.finished and not cell.begun and (other := known.get(cell.identity)):
            cell.files.take_from(other)
            print(f"{cell.name}: the same run as {short(other)}, which is finished", flush=True)
    wanted = {cell.name: cell.stop_after or math.inf for cell in runs}
    return known, {name: min(config["trainer"]["rounds"], wanted[name]) for name, config in configs.items()}


def _outcome(cell: Cell) -> str:
    if cell.error:
        return cell.error if cell.busy else f"failed: {cell.error}"
    result = last_result(cell)
    if result is None or not result.scores:
        return "diverged before the first evaluation" if result and result.diverged else "no evaluation"
    scale, places = percent_scale([result]), decimals([result])
    return "diverged, " * result.diverged + ", ".join(
        f"{name} {number(scale * result.scores[name], places)}" for name in ("best", "last")
    )
