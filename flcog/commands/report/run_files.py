"""What a report reads of a run's directory; no model and no data are loaded."""

import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from flcog.core.monitor import lower_is_better, main_metric
from flcog.run.masking import masked
from flcog.run.metrics_rows import Row, read_rows


@dataclass(frozen=True)
class RunFiles:
    """A run as its files tell of it.

    Args:
        directory: the run's.
        name: what the page calls it.
        rows: of metrics.csv.
        setting: run.yaml.
        config: config.yaml, without secrets.
    """

    directory: Path
    name: str
    rows: list[Row]
    setting: dict[str, Any]
    config: dict[str, Any]

    @cached_property
    def main(self) -> str | None:
        """The score by which the run is judged."""
        names = (main_metric(row) for row in reversed(self.rows))
        return next(filter(None, names), None)

    @cached_property
    def chooser(self) -> str | None:
        """The score by which its best round is chosen: the validation set's where there is one."""
        names = (main_metric(row, selecting=True) for row in reversed(self.rows))
        return next(filter(None, names), None)

    @property
    def main_falls(self) -> bool:
        """Whether a lower main score is better."""
        return self.main is not None and lower_is_better(self.main)

    @cached_property
    def chosen(self) -> Row | None:
        """The row of the best round; NaN is never best."""
        name = self.chooser
        rated = [row for row in self.rows if name in row and row[name] == row[name]] if name is not None else []
        if name is None or not rated:
            return None
        sign = -1 if lower_is_better(name) else 1
        return max(rated, key=lambda row: sign * row[name])

    def points(self, column: str) -> list[tuple[float, float]]:
        """A column by round."""
        return [(row["round"], row[column]) for row in self.rows if column in row]

    @property
    def figures(self) -> dict[str, list[Path]]:
        """The pictures that it drew, by what they show, each in the order of its rounds."""
        found: dict[str, list[Path]] = {}
        for path in sorted((self.directory / "figures").glob("*.png")):
            found.setdefault(re.sub(r"-\d+$", "", path.stem), []).append(path)
        return found


def read_run(directory: Path) -> RunFiles:
    """What the files in a run's directory say."""
    table = directory / "metrics.csv"
    if not table.is_file():
        raise ValueError(f"{directory} holds no metrics.csv: give the directory of a run, such as runs/20260131-120000")
    rows, damage = read_rows(table)
    if not rows:
        raise ValueError(f"{table} has no rows to report on" + (f": {damage}" if damage else ""))
    if damage:
        print(f"{table}: {damage}; the page shows the {len(rows):,} rows before it", file=sys.stderr, flush=True)
    return RunFiles(
        directory, directory.resolve().name, rows, masked(_yaml(directory / "run.yaml")), masked(_yaml(directory / "config.yaml"))
    )


def _yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({str(error).splitlines()[0]}): put it right, or remove it") from None
    return content if isinstance(content, dict) else {}
