"""A cell's folder: its run's directory, and files about the run.

``output.txt`` holds the run's output. ``finished`` is written at its end, and ``diverged`` if its model became NaN or infinite.
``same_run.yaml`` names the folder of another table that has finished the same run.
Runs with a damaged ``metrics.csv`` are moved to the folder ``damaged``.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flcog import SavedRun
from flcog.core.files import clear_errors, make_folder, replacing, write_yaml
from flcog.core.yaml_files import load_yaml

OUT_REMEDY = "free space or choose another --out"
"""The fix if the folder of the runs and the table cannot be written."""

FINISHED, DIVERGED, SAME_RUN, DAMAGED = "finished", "diverged", "same_run.yaml", "damaged"
OUTPUT = "output.txt"


@dataclass(frozen=True)
class CellFolder:
    """The folder of one cell.

    Args:
        path: the folder.
    """

    path: Path

    @property
    def own_run(self) -> SavedRun | None:
        """The run in this folder; if it was started more than once, the newest. One without rows counts only if it has diverged."""
        found = [*self.path.glob("*/metrics.csv")] or [*(self.path.glob("*/run.yaml") if self.diverged else ())]
        return SavedRun(max(found, key=lambda path: path.stat().st_mtime_ns).parent) if found else None

    @property
    def source(self) -> "CellFolder":
        """The folder with the run: this folder, or the folder of another table that has finished the same run."""
        named = self.read(SAME_RUN)
        if not isinstance(named, dict) or "folder" not in named:
            return self
        other = CellFolder((self.path / str(named["folder"])).resolve())
        return other if other.finished else self

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
        """Whether its own run is there, has finished, and is not damaged."""
        return (self.path / FINISHED).is_file() and self.own_run is not None and self.damage is None

    @property
    def diverged(self) -> bool:
        """Whether its run ended because the model became NaN or infinite."""
        return (self.path / DIVERGED).is_file()

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
        if not digest and not run.table.is_file():  # it diverged in round 1
            return None
        damage = run.damage
        if damage is None and digest and digest != run.digest:
            damage = "it is not as it was when the run finished"
        return None if damage is None else f"{run.table}: {damage}"

    def mark_finished(self, identity: str, diverged: bool = False) -> None:
        """Write that the run has finished, with its identity and the digest of its rows, and whether its model became NaN or infinite."""
        (self.path / DIVERGED).unlink(missing_ok=True)
        if diverged:
            (self.path / DIVERGED).touch()
        run = self.own_run
        with replacing(self.path / FINISHED, "w", OUT_REMEDY) as file:
            file.write(identity + (f"\nmetrics.csv {run.digest}\n" if run is not None and run.digest else ""))

    def take_from(self, other: Path) -> None:
        """Write that another folder has the same run. Both folders may be moved together."""
        write_yaml(self.path / SAME_RUN, {"folder": os.path.relpath(other.resolve(), self.path.resolve())}, OUT_REMEDY)

    def claim(self) -> None:
        """Make the folder. A damaged run is moved aside, to be trained again. The notes about a run that was deleted go."""
        run, damage = self.own_run, self.damage
        with clear_errors(self.path, OUT_REMEDY):
            make_folder(self.path)
            if damage and run is not None:
                make_folder(self.path / DAMAGED)
                run.directory.rename(self.path / DAMAGED / f"{time.time_ns()}-{run.directory.name}")
            if damage or run is None:
                for note in (FINISHED, DIVERGED):
                    (self.path / note).unlink(missing_ok=True)

    def forget_same_run(self) -> None:
        """Delete the note about the same run in another folder."""
        (self.path / SAME_RUN).unlink(missing_ok=True)

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
            if folder.identity and folder.finished:
                found[folder.identity] = path.parent
    return found


def print_damage(damages: Sequence[str | None], consequence: str = "") -> None:
    """Print each damage once, and that the run counts as unfinished."""
    for damage in filter(None, dict.fromkeys(damages)):
        print(f"{damage}. The run counts as unfinished{consequence}", file=sys.stderr, flush=True)
