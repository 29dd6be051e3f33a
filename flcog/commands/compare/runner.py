"""Trains the runs of a table as processes, some side by side, and goes on with those that were interrupted."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import FrameType

import yaml

from flcog.commands.compare.plan import OUT_REMEDY, Cell
from flcog.core import signals
from flcog.core.child_processes import started_by_us
from flcog.core.files import clear_errors, make_folder, replacing, write_yaml
from flcog.run.directory import LAST
from flcog.run.writer_lock import ADVICE, BUSY, WriterLock


class Runner:
    """Runs cells as processes of their own, some side by side; what a killed comparison had begun goes on from its last round.

    Args:
        jobs: how many at a time; they share the cores.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.signal = 0
        """The signal that has stopped it; 0 for none."""
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock, self._stopped, self._interrupts = threading.Lock(), False, 0
        self._terminals = signals.terminals()

    def run(self, todo: Sequence[Cell]) -> Iterator[tuple[Cell, float]]:
        """Yields each cell when it is through, with its seconds; what went wrong is its ``error``."""
        pool = ThreadPoolExecutor(self.jobs)
        try:
            futures = {pool.submit(self._one, cell): cell for cell in todo}
            for future in as_completed(futures):
                took = future.result()
                if futures[future].finished or not self.signal:
                    yield futures[future], took
        finally:
            with self._lock:
                self._stopped = True
                for child in self._children:
                    child.terminate()
            pool.shutdown(cancel_futures=True)

    def stop(self, number: int, _: FrameType | None) -> None:
        """Answer a signal: begin no more runs, and hand it on to those in hand, which know how to end; the fourth Ctrl-C kills them."""
        self.signal, self._stopped = number, True
        self._interrupts += number == signal.SIGINT
        if number == signal.SIGHUP:
            signals.leave_dead_terminals(self._terminals)
        for child in list(self._children):
            child.send_signal(number) if self._interrupts < 4 else child.kill()
        again = "; Ctrl-C again stops them at once" if number == signal.SIGINT else ""
        signals.say(f"{signals.name(number)}: the runs in hand are saved and stop, and no more are begun{again}")

    def _one(self, cell: Cell) -> float:
        started, lock = time.monotonic(), WriterLock()
        # Another comparison may fill the same table.
        cell.error = None if self._stopped else lock.take(cell.folder)
        try:
            if cell.error is None and not self._stopped and not cell.finished:
                self._train(cell)
        finally:
            lock.release()
        if cell.error is not None and f" {BUSY} " in cell.error:
            cell.error, cell.busy = cell.error.partition(f": {ADVICE}")[0], True
        return time.monotonic() - started

    def _train(self, cell: Cell) -> None:
        begun = any(cell.folder.glob(f"*/{LAST}"))
        threads = str(max(1, len(os.sched_getaffinity(0)) // self.jobs if hasattr(os, "sched_getaffinity") else 1))
        # -P: else Python looks for every module in the working directory first, where a random.py may lie.
        command = [sys.executable, "-P", "-m", "flcog", *cell.arguments, *(["--ckpt_path", "last"] if begun else [])]
        with (cell.folder / "output.txt").open("ab") as output:
            with self._lock:
                if self._stopped:
                    return
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={"OMP_NUM_THREADS": threads, **os.environ, **started_by_us()},
                    process_group=0,  # a terminal's Ctrl-C comes through `stop`, once
                )
                self._children.add(child)
            if self.signal:  # came while it was being started, when `stop` could not know it
                child.send_signal(self.signal)
            code = child.wait()
        with self._lock:
            self._children.discard(child)
        if code == 0:
            with replacing(cell.folder / "finished", remedy=OUT_REMEDY):
                pass  # left empty: only whether the file exists is looked at
        else:
            lines = (cell.folder / "output.txt").read_text(errors="replace").strip().splitlines()
            cell.error = lines[-1].removeprefix("flcog: error: ") if lines else f"exit status {code}"


def claim(cell: Cell) -> None:
    """Make the cell's folder, or check that what was begun there is this very run."""
    note = cell.folder / "arguments.yaml"
    if note.is_file() and (cell.folder / "output.txt").is_file():
        earlier = _earlier_arguments(note)
        then, now = _settings(earlier), _settings(cell.arguments)
        if then != now:
            changed = shlex.join([word for word in now if word not in then]) or "fewer arguments"
            raise ValueError(
                f"{cell.folder} holds this arm with other settings (now: {changed}): choose another --out, or delete it"
            )
        return
    with clear_errors(cell.folder, OUT_REMEDY):
        make_folder(cell.folder)
    write_yaml(note, cell.arguments, OUT_REMEDY)


def _earlier_arguments(note: Path) -> list[str]:
    try:
        earlier = yaml.safe_load(note.read_text(encoding="utf-8"))
    except (UnicodeError, yaml.YAMLError):
        earlier = None
    if not isinstance(earlier, list) or not all(isinstance(word, str) for word in earlier):
        raise ValueError(f"{note} is damaged: delete {note.parent}, or choose another --out")
    return earlier


def _settings(arguments: Sequence[str]) -> list[str]:
    """What makes the run: not where its folder and the configs lie, so that a clone or a folder that was moved goes on."""
    pairs = list(zip(["", *arguments], arguments, strict=False))
    kept = [pair for pair in pairs if "--trainer.default_root_dir" not in pair]
    return [Path(word).name if before == "-c" else word for before, word in kept]
