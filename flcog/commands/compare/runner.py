"""Trains the runs of a table as processes of this machine, several at a time."""

import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import FrameType

from flcog.commands.compare.folder import OUTPUT
from flcog.commands.compare.plan import Cell
from flcog.commands.compare.training import conclude, start
from flcog.core import signals
from flcog.core.fabric import num_cores
from flcog.core.writer_lock import WriterLock, without_advice


class Runner:
    """Runs each cell as a process, several at a time. A run that was interrupted is resumed from its last round.

    Args:
        jobs: the number of processes at a time, which share the cores.
        known: finished runs by their identities, which are not run again.
    """

    def __init__(self, jobs: int, known: dict[str, Path] | None = None) -> None:
        self.jobs, self.known = jobs, dict(known or {})
        self.signal = 0
        """The signal that has stopped it; 0 for none."""
        self._running: dict[Future[float], Cell] = {}
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock, self._stopped, self._interrupts = threading.Lock(), False, 0
        self._terminals = signals.terminals()

    def run(self, todo: Sequence[Cell]) -> Iterator[tuple[Cell, float]]:
        """Yield each cell at its end, with its seconds. A failed cell has an ``error``."""
        pool, waiting, running = ThreadPoolExecutor(self.jobs), list(todo), self._running
        try:
            while running or (waiting and not self._stopped):
                while waiting and len(running) < self.jobs:
                    cell = waiting.pop(0)
                    running[pool.submit(self._one, cell)] = cell
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    cell = running.pop(future)
                    if cell.finished or not self.signal:
                        yield cell, future.result()
        finally:
            with self._lock:
                self._stopped = True
                for child in self._children:
                    child.terminate()
            pool.shutdown(cancel_futures=True)

    def in_hand(self) -> list[Cell]:
        """The cells that are being trained."""
        return list(self._running.values())

    def stop(self, number: int, _: FrameType | None) -> None:
        """Handle a signal: start no more runs, and pass it on to the current runs, which save and stop. The fourth Ctrl-C kills them."""
        self.signal, self._stopped = number, True
        self._interrupts += number == signal.SIGINT
        if number == signal.SIGHUP:
            signals.leave_dead_terminals(self._terminals)
        for child in list(self._children):
            child.send_signal(number) if self._interrupts < 4 else child.kill()
        again = "; Ctrl-C again stops them at once" if number == signal.SIGINT else ""
        signals.say(f"{signals.name(number)}: current runs are saved and stop, and no further runs start{again}")

    def _one(self, cell: Cell) -> float:
        started, lock = time.monotonic(), WriterLock()
        # Another comparison may fill the same table.
        cell.error = None if self._stopped else lock.take(cell.folder)
        try:
            if cell.error is None and not self._stopped and not cell.finished:
                if cell.identity in self.known and not cell.begun:
                    cell.files.take_from(self.known[cell.identity])
                else:
                    self._train(cell)
        finally:
            lock.release()
        if cell.error is not None and (busy := without_advice(cell.error)):
            cell.error, cell.busy = busy, True
        return time.monotonic() - started

    def _train(self, cell: Cell) -> None:
        threads = max(1, num_cores() // self.jobs)
        with (cell.folder / OUTPUT).open("ab") as output:
            with self._lock:
                if self._stopped:
                    return
                child = start(cell, threads, output, process_group=0)  # a terminal's Ctrl-C comes through `stop`, once
                self._children.add(child)
            if self.signal:  # it came before `stop` knew this process
                child.send_signal(self.signal)
            code = child.wait()
        with self._lock:
            self._children.discard(child)
        conclude(cell, code)
        if cell.finished and cell.identity:
            self.known[cell.identity] = cell.folder
