"""Reads a run's files for a report, without loading its model or data."""

import math
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flcog.core.masking import masked
from flcog.core.monitor import lower_is_better, main_metric
from flcog.run.checkpoint import peek
from flcog.run.metrics_rows import Row, read_rows
from flcog.run.record import read_config, read_record


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run's files.

    Args:
        directory: the run's directory.
        name: the run's name on the page.
        rows: the rows of metrics.csv.
        setting: the contents of run.yaml.
        config: the contents of config.yaml, without secrets.
    """

    directory: Path
    name: str
    rows: list[Row]
    setting: dict[str, Any]
    config: dict[str, Any]

    @cached_property
    def main(self) -> str | None:
        """The run's main score."""
        names = (main_metric(row) for row in reversed(self.rows))
        return next(filter(None, names), None)

    @cached_property
    def chooser(self) -> str | None:
        """The score that chooses the best round, from the validation set if there is one."""
        names = (main_metric(row, selecting=True) for row in reversed(self.rows))
        return next(filter(None, names), None)

    @cached_property
    def chosen(self) -> Row | None:
        """The row of the best round. NaN is never best."""
        name = self.chooser
        if name is None:
            return None
        sign = -1 if lower_is_better(name) else 1
        rated = [row for row in self.rows if name in row and row[name] == row[name]]
        return max(rated, key=lambda row: sign * row[name], default=None)

    @cached_property
    def saved_by(self) -> str | None:
        """The score that chose best.ckpt, if the file names one."""
        found: Any = peek(self.directory / "checkpoints" / "best.ckpt")
        for name in ("observers", "Checkpoint", "metric"):
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, str) else None

    def points(self, column: str) -> list[tuple[float, float]]:
        """Return a column by round."""
        return [(row["round"], row[column]) for row in self.rows if column in row]

    @property
    def figures(self) -> dict[str, list[Path]]:
        """The run's pictures by their subject, each list in order of rounds."""
        found: dict[str, list[Path]] = {}
        for path in sorted(filter(Path.is_file, (self.directory / "figures").glob("*.png"))):
            found.setdefault(re.sub(r"-\d+$", "", path.stem), []).append(path)
        return found


LARGEST = 1e300
"""Curves show larger values as infinite. The differences between such values would not be numbers."""


def _drawable(value: float) -> float:
    return value if not abs(value) > LARGEST else math.inf if value > 0 else -math.inf


def read_run(directory: Path) -> RunFiles:
    """Read the files in a run's directory."""
    table = directory / "metrics.csv"
    if not table.is_file():
        raise ValueError(f"{directory} holds no metrics.csv: give the directory of a run, such as runs/20260131-120000")
    rows, damage = read_rows(table)
    if not rows:
        raise ValueError(f"{table} has no rows to report on" + (f": {damage}" if damage else ""))
    if damage:
        print(f"{table}: {damage}; the page shows the {len(rows):,} rows before it", file=sys.stderr, flush=True)
    rows = [{name: _drawable(value) for name, value in row.items()} for row in rows]
    return RunFiles(directory, directory.resolve().name, rows, masked(read_record(directory)), masked(read_config(directory)))
