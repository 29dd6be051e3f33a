"""The runs of a report: their files, and groups of runs that differ only in their seed."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from flcog.core.arguments import flat
from flcog.core.masking import masked
from flcog.core.monitor import lower_is_better, main_of
from flcog.run.experiment import VARIES
from flcog.run.metrics_table import Row, read_rows
from flcog.run.saved_run import SavedRun

SAME = ("methods", "model", "num_parameters", "data", "num_clients", "acting_rounds")
"""Entries of run.yaml that are the same within a group."""


@dataclass(frozen=True)
class RunFiles:
    """A run's directory: the rows of metrics.csv, the setting in run.yaml, and the config in config.yaml, both without secrets."""

    directory: Path
    rows: list[Row]
    setting: dict[str, Any]
    config: dict[str, Any]

    @property
    def name(self) -> str:
        return self.directory.resolve().name

    @property
    def seed(self) -> str:
        return str(self.setting.get("seed", "unknown"))

    @property
    def methods(self) -> str:
        """The methods' names, without settings."""
        return " + ".join(str(text).partition("(")[0] for text in self.setting.get("methods") or []) or "FedAvg"

    @cached_property
    def main(self) -> str | None:
        """The run's main score."""
        return main_of(self.rows)

    @cached_property
    def chooser(self) -> str | None:
        """The score that chooses the best round, from the validation set if there is one."""
        return main_of(self.rows, selecting=True)

    @cached_property
    def chosen(self) -> Row:
        """The row of the best round; empty if there is none. NaN is never best."""
        name = self.chooser or ""
        rated = [row for row in self.rows if name in row and row[name] == row[name]]
        return max(rated, key=lambda row: row[name] * (-1 if lower_is_better(name) else 1), default={})

    def column(self, name: str) -> pandas.Series:
        """A column of metrics.csv by round."""
        found = {row["round"]: row[name] for row in self.rows if name in row}
        return pandas.Series(found, dtype=float)

    @property
    def figures(self) -> dict[str, list[Path]]:
        """The run's pictures by their subject, each list in order of rounds."""
        found: dict[str, list[Path]] = {}
        for path in sorted(filter(Path.is_file, (self.directory / "figures").glob("*.png"))):
            found.setdefault(re.sub(r"-\d+$", "", path.stem), []).append(path)
        return found


def read_run(directory: Path) -> RunFiles:
    """Read the files in a run's directory, without its model and data."""
    saved = SavedRun(directory)
    if not (rows := read_rows(saved.file("metrics.csv"))):
        raise ValueError(f"{saved.table} has no rows to report on")
    return RunFiles(directory, rows, masked(saved.description), masked(saved.config))


@dataclass(frozen=True)
class Group:
    """Runs of the same experiment with different seeds, and how the page calls them."""

    name: str
    runs: Sequence[RunFiles]

    def curve(
        self, y: Callable[[RunFiles], pandas.Series], x: Callable[[RunFiles], pandas.Series] | None = None
    ) -> pandas.DataFrame:
        """The means of its runs by round, at ``x`` or else the round itself, with a band from the lowest run to the highest."""
        parts = []
        for run in self.runs:
            values = y(run)[np.isfinite]
            parts.append(pandas.DataFrame({"x": x(run) if x else values.index.to_series(), "y": values}).dropna())
        rounds = pandas.concat(parts).groupby(level=0)
        return rounds.agg(x=("x", "mean"), mean=("y", "mean"), low=("y", "min"), high=("y", "max"))


def grouped(runs: Sequence[RunFiles]) -> list[Group]:
    """The groups in the order of their first runs."""
    members: dict[tuple[str, int], list[RunFiles]] = {}
    for run in runs:
        same = _experiment(run)
        repeat = sum(other.seed == run.seed for (key, _), found in members.items() for other in found if key == same)
        members.setdefault((same, repeat), []).append(run)
    groups = list(members.values())
    return [Group(name, found) for name, found in zip(_names([found[0] for found in groups]), groups, strict=True)]


def _experiment(run: RunFiles) -> str:
    """A text that runs share if they are known to differ only in their seed and in their folder."""
    config = {key: value for key, value in flat(run.config).items() if not VARIES.search(key)}
    whole = all("class_path" in run.config.get(part, {}) for part in ("model", "data"))  # else objects were made in Python
    known = None if whole else run.setting.get("experiment", str(run.directory))
    return json.dumps([{key: run.setting.get(key) for key in SAME}, config, known], sort_keys=True, default=str)


def _names(runs: Sequence[RunFiles]) -> list[str]:
    """The shortest names that differ: the methods, then with the settings that differ between them, with the folder, or with a number."""
    names = [run.methods for run in runs]
    folders = (lambda run, _: run.name, lambda run, _: str(run.directory))
    for part in (_distinct, *folders, lambda run, _: f"run {runs.index(run) + 1}"):
        doubled = {name for name in names if names.count(name) > 1}
        alike = [run for name, run in zip(names, runs, strict=True) if name in doubled]
        longer = [", ".join(filter(None, [run.methods, part(run, alike)])) for run in runs]
        names = [new if name in doubled and len(new) <= 60 else name for name, new in zip(names, longer, strict=True)]
    return names


def _distinct(run: RunFiles, runs: Sequence[RunFiles]) -> str:
    """The settings in which a run differs from others, as ``lr=0.1``."""
    own, others = flat(run.config), [flat(other.config) for other in runs if other.methods == run.methods]
    keys = [key for key in own if not VARIES.search(key) and len({str(other.get(key)) for other in others}) > 1]
    return ", ".join(f"{key.rpartition('.')[2]}={own[key]}" for key in keys)
