"""A cell's folder: its run's directory, and files about the run.

``arguments.yaml`` holds the command line and ``output.txt`` the run's output. ``finished`` is written at its end. ``same_run.yaml``
names the folder of another table that has finished the same run. ``carried.yaml`` lists methods that the run carries for others.
Runs with a damaged ``metrics.csv`` are moved to the folder ``damaged``.
"""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flcog import SavedRun
from flcog.core.files import OWNER_ONLY, clear_errors, make_folder, replacing, write_yaml
from flcog.core.yaml_files import load_yaml

OUT_REMEDY = "free space or choose another --out"
"""The fix if the folder of the runs and the table cannot be written."""

FINISHED, SAME_RUN, CARRIED, DAMAGED = "finished", "same_run.yaml", "carried.yaml", "damaged"
OUTPUT, ARGUMENTS = "output.txt", "arguments.yaml"

Option = tuple[str, ...]
"""An option of a command line with its values."""


@dataclass(frozen=True)
class CellFolder:
    """The folder of one cell.

    Args:
        path: the folder.
    """

    path: Path

    @property
    def own_run(self) -> SavedRun | None:
        """The run in this folder; if it was started more than once, the newest."""
        tables = sorted(self.path.glob("*/metrics.csv"), key=lambda path: path.stat().st_mtime_ns)
        return SavedRun(tables[-1].parent) if tables else None

    @property
    def source(self) -> "CellFolder":
        """The folder with the run: this folder, or the folder of another table that has finished the same run."""
        named = self.read(SAME_RUN)
        if not isinstance(named, dict) or "folder" not in named:
            return self
        other = CellFolder((self.path / str(named["folder"])).resolve())
        return other if other.finished and other.own_run is not None else self

    def read(self, name: str) -> Any:
        """The content of one of its YAML files; None if the file is missing or damaged."""
        try:
            return load_yaml(self.path / name)
        except ValueError:
            return None

    @property
    def begun(self) -> bool:
        """Whether its own run has written a checkpoint."""
        return any(SavedRun(path).can_resume for path in self.path.glob("*/"))

    @property
    def finished(self) -> bool:
        """Whether its own run has finished, and is not damaged."""
        return (self.path / FINISHED).is_file() and self.damage is None

    @property
    def identity(self) -> str:
        """The identity of its finished run; empty if the file does not tell."""
        return (self._finished_lines() or [""])[0].strip()

    @property
    def damage(self) -> str | None:
        """The fault of its finished run's ``metrics.csv``, with the path. None without a fault, or if the run has not finished."""
        lines, run = self._finished_lines(), self.own_run
        if lines is None or run is None:
            return None
        digest = lines[1].split()[-1] if len(lines) > 1 else ""
        damage = run.damage
        if damage is None and digest and digest != run.digest:
            damage = "it is not as it was when the run finished"
        return None if damage is None else f"{run.table}: {damage}"

    def mark_finished(self, identity: str) -> None:
        """Write that the run has finished, with its identity and the digest of its rows."""
        run = self.own_run
        with replacing(self.path / FINISHED, "w", OUT_REMEDY) as file:
            file.write(identity + (f"\nmetrics.csv {run.digest}\n" if run is not None else ""))

    def take_from(self, other: Path) -> None:
        """Write that another folder has the same run. Both folders may be moved together."""
        write_yaml(self.path / SAME_RUN, {"folder": os.path.relpath(other.resolve(), self.path.resolve())}, OUT_REMEDY)

    @property
    def carried(self) -> list[Any]:
        """The class paths and arguments of methods that its run carries for others."""
        parts = self.read(CARRIED)
        return parts if isinstance(parts, list) else []

    def carry(self, parts: Sequence[Any]) -> None:
        """Write which methods a new run carries, so that it is resumed with them."""
        (self.path / CARRIED).unlink(missing_ok=True)
        if parts:
            write_yaml(self.path / CARRIED, list(parts), OUT_REMEDY)

    def claim(self, arguments: Sequence[str]) -> None:
        """Make the folder, or check that the run in it has these arguments. A damaged run is moved aside, to be trained again."""
        self._move_damaged()
        given, now = self.path / ARGUMENTS, settings_of(arguments)
        if given.is_file() and self._has_run():
            if (then := settings_of(self._earlier_arguments())) != now:
                changed = shlex.join([word for option in now if option not in then for word in option]) or "fewer arguments"
                raise ValueError(
                    f"{self.path} holds this arm with other settings (now: {changed}): choose another --out, or delete it"
                )
            return
        with clear_errors(self.path, OUT_REMEDY):
            make_folder(self.path)
            if (self.path / SAME_RUN).is_file() and settings_of(self._earlier_arguments()) != now:
                (self.path / SAME_RUN).unlink(missing_ok=True)  # the table has changed since
        write_yaml(given, list(arguments), OUT_REMEDY, OWNER_ONLY)  # a table's options may contain secrets

    def _move_damaged(self) -> None:
        run = self.own_run
        if self.damage and run is not None:
            with clear_errors(self.path, OUT_REMEDY):
                make_folder(self.path / DAMAGED)
                run.directory.rename(self.path / DAMAGED / f"{time.time_ns()}-{run.directory.name}")
                (self.path / FINISHED).unlink()

    def _has_run(self) -> bool:
        """Whether a run was started here: a run that is refused leaves only its output."""
        begun = (self.path / FINISHED).is_file() or any(path.is_dir() for path in self.path.iterdir())
        return begun and (self.path / OUTPUT).is_file()

    def _earlier_arguments(self) -> list[str]:
        earlier = self.read(ARGUMENTS)
        if not isinstance(earlier, list) or not all(isinstance(word, str) for word in earlier):
            raise ValueError(f"{self.path / ARGUMENTS} is damaged: delete {self.path}, or choose another --out")
        return earlier

    def _finished_lines(self) -> list[str] | None:
        try:
            return (self.path / FINISHED).read_text(errors="replace").splitlines()
        except OSError:
            return None


def finished_runs(root: Path) -> dict[str, Path]:
    """The finished cells' folders of all tables below this folder, by their identities."""
    found = {}
    for pattern in ("*/seed*", "*/*/seed*", "*/*/*/seed*"):
        for path in sorted(root.glob(f"{pattern}/{FINISHED}")):
            folder = CellFolder(path.parent)
            if folder.identity and folder.damage is None:
                found[folder.identity] = path.parent
    return found


def print_damage(damages: Sequence[str | None], consequence: str = "") -> None:
    """Print each damage once, and that the run counts as unfinished."""
    for damage in filter(None, dict.fromkeys(damages)):
        print(f"{damage}. The run counts as unfinished{consequence}", file=sys.stderr, flush=True)


def options_of(arguments: Sequence[str]) -> list[Option]:
    """The options of a command line. Configs count by their file names, so that another clone's are equal."""
    options: list[list[str]] = []
    for word in arguments:
        if word.startswith("--") or word == "-c":
            options.append(word.split("=", 1))
        elif options:
            options[-1].append(Path(word).name if options[-1][0] == "-c" else word)
    return [tuple(option) for option in options]


def settings_of(arguments: Sequence[str]) -> list[Option]:
    """The options that make the run. Its place does not count, so that a moved folder can be resumed."""
    return [option for option in options_of(arguments) if option[0] != "--trainer.default_root_dir"]
