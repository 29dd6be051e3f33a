"""A table of ``flcog compare``, and the runs that fill it."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from flcog import SavedRun
from flcog.commands.compare.axis import Axis
from flcog.commands.compare.folder import CellFolder
from flcog.commands.compare.given_options import FOLDER, SEED, SPLIT_SEED, check_given
from flcog.commands.compare.published import Published, without_comparisons

Summary = Literal["best", "last", "mean", "val"]
"""The score of a run: its best evaluation, the last, the mean of the last few, or the evaluation in the round with the best validation."""


@dataclass(frozen=True)
class Part:
    """Configuration of a row, a column or the whole table: files for ``-c``, and options with their values.

    A row may have further options in single columns, such as a step size that was tuned for each setting. Several columns may show the
    runs of one setting, each with its own metric, its own summary, or the score and target of fewer rounds.
    """

    configs: tuple[Path, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metric: str | None = None
    setting: str | None = None
    summary: Summary | None = None
    round: int | None = None
    target: float | None = None
    tune: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values to try with ``--tune``, by option."""


@dataclass(frozen=True)
class Table:
    """A table to fill.

    Args:
        title: its title.
        name: the name of its file, without the ending.
        common: the configuration of all runs.
        rows: arms, by name. Times are shown relative to the first.
        columns: settings, by name.
        seeds: every arm is run with each, in each setting.
        metric: the column of ``metrics.csv`` that is compared; None for the task's main one.
        last: the number of last evaluations in the mean.
        published: a paper's figures by row and column, shown beside ours.
        margins: the largest differences that reproduce a score (in points), rounds (a ratio) or saved bytes (in points), by quantity.
        reason: the reason for the margins and for the summary.
        trials: the paper's number of trials, by which the error of its figures is smaller than its ±.
        planned: the seeds of its file, which are fixed before the runs.
        exploratory: seeds that had been seen before the margins were fixed.
        hypothesis: the hypothesis that was stated before the runs, or empty.
        figure: the number that rows or columns vary, for a figure of the scores.
        against: for each row, the row that it is compared with. A row is not compared with itself.
        varies_split: whether each seed draws its own split; else all seeds share one.
        confidence: of the intervals, such as 0.95 for 95 %.
        summary: the score of a run that is compared with other arms and the paper, in columns without their own.
        over_rounds: whether the mean of the last evaluations shows its deviation over them, not over seeds.
        average, worst: the names of further columns, the mean and the worst score over all settings; empty for no such column.
        reproduces: the paper's tables and figures that it fills, such as "FedCOG, Table 1".
        deviations: contradictions to the paper, one sentence each.
        unstated: settings that the paper does not state, and their sources.
    """

    title: str
    name: str
    common: Part
    rows: Mapping[str, Part]
    columns: Mapping[str, Part]
    seeds: tuple[int, ...]
    metric: str | None
    last: int
    published: Published
    against: Mapping[str, str]
    varies_split: bool = False
    confidence: float = 0.95
    summary: Summary = "best"
    over_rounds: bool = False
    average: str = ""
    worst: str = ""
    reproduces: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    unstated: tuple[str, ...] = ()
    margins: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    trials: int = 1
    planned: tuple[int, ...] = ()
    exploratory: tuple[int, ...] = ()
    hypothesis: str = ""
    figure: Axis | None = None
    tuning_seeds: tuple[int, ...] = ()
    halving: bool = False
    """Whether ``--tune`` stops the worse configurations early."""
    tuned: tuple[str, ...] = ()
    """A sentence on the search for hyper-parameters, if there was one."""
    grid: str = ""
    """All configurations of this search as a table in Markdown."""
    all_rows: frozenset[str] = frozenset()
    all_settings: frozenset[str] = frozenset()
    """Its rows and settings before a selection."""

    @property
    def settings(self) -> dict[str, str]:
        """The setting of each column. Columns with different metrics of one setting show the same runs."""
        return {name: name if part.setting is None else part.setting for name, part in self.columns.items()}

    def summary_of(self, column: str) -> Summary:
        """The score of a run that is compared in this column."""
        return (self.columns[column].summary if column in self.columns else None) or self.summary


@dataclass
class Cell:
    """One run of the table: an arm in a setting with a seed, with its folder and its command line."""

    row: str
    column: str
    seed: int
    folder: Path
    arguments: list[str]
    error: str | None = None
    busy: bool = False
    """Whether it was skipped, because another process is training it."""
    metric: str | None = None
    """The compared column of ``metrics.csv``; None for the task's main metric."""
    setting: str = ""
    """The setting of its column."""
    until: int | None = None
    """The last round that counts for its scores; None for all."""
    target: float | None = None
    """The score whose round and bytes are read off the curve."""
    extra: Sequence[str] = ()
    """The user's own arguments on its command line."""
    common_arguments: Sequence[str] = ()
    """Its command line without the command, seeds and folder, which is equal for all seeds."""
    varies_split: bool = False
    """Whether its seed draws the split, too."""
    identity: str = ""
    """Equal for all runs with the same results; empty if unknown."""
    stop_after: int | None = None
    """The round after which its run stops for now; None for the last one."""

    @property
    def name(self) -> str:
        return joined(self.row, self.column, f"seed {self.seed}")

    @property
    def files(self) -> CellFolder:
        """Its folder, with the files about the run."""
        return CellFolder(self.folder)

    @property
    def finished(self) -> bool:
        return self.files.source.finished

    @property
    def damage(self) -> str | None:
        """The fault in ``metrics.csv`` of its finished run, which then counts as unfinished."""
        return self.files.source.damage

    @property
    def begun(self) -> bool:
        """Whether its own run has written a checkpoint."""
        return self.files.begun

    @property
    def run(self) -> SavedRun | None:
        """Its run, or the run of another table that is the same and has finished."""
        return self.files.source.own_run

    @property
    def rounds_before(self) -> int:
        """The number of rounds that a new start of its run need not train."""
        return len(self.history()) if self.begun else 0

    def history(self) -> list[dict[str, float]]:
        """The rows of its run so far."""
        return self.run.rows if self.run else []


def cells(table: Table, out: Path, extra: Sequence[str]) -> list[Cell]:
    """Every run of the table, with its command line. Columns come before rows, the user's own arguments last."""
    given = [word.partition("=")[0].removeprefix("--") for word in extra if word.startswith("--")]
    check_given([*_options_of(table), *given], table.varies_split)
    result, places = [], table.settings
    for (column, setting), (row, arm), seed in product(table.columns.items(), table.rows.items(), table.seeds):
        place = places[column]
        folder = out.joinpath(*(file_name(name) for name in (place, row) if name), f"seed{seed}")
        arguments = ["fit"]
        for part in (table.common, setting, arm):
            arguments += [word for config in part.configs for word in ("-c", str(config))]
        for options in (table.common.arguments, setting.arguments, arm.arguments, arm.columns.get(place, {})):
            arguments += [word for key, value in options.items() for word in (f"--{key}", _word(value))]
        common = [*arguments[1:], *extra]
        drawn = [f"--{SEED}", str(seed), *([f"--{SPLIT_SEED}", str(seed)] if table.varies_split else [])]
        arguments += [*extra, *drawn, f"--{FOLDER}", str(folder)]
        cell = Cell(row, column, seed, folder, arguments, extra=extra, common_arguments=common, varies_split=table.varies_split)
        cell.metric, cell.setting = setting.metric or table.metric, place
        cell.until, cell.target = setting.round, setting.target
        result.append(cell)
    _check_apart(result)
    return result


def apart(runs: Sequence[Cell]) -> list[Cell]:
    """One cell for each run. Columns with different metrics of one setting show the same runs."""
    return list({cell.folder: cell for cell in reversed(runs)}.values())[::-1]


def _options_of(table: Table) -> list[str]:
    """The names of all options in the table's file."""
    parts = (table.common, *table.columns.values(), *table.rows.values())
    return [name for part in parts for options in (part.arguments, *part.columns.values()) for name in options]


def _check_apart(runs: Sequence[Cell]) -> None:
    """Refuse names that differ only in characters that folder names cannot contain."""
    seen: dict[Path, Cell] = {}
    for cell in runs:
        other = seen.setdefault(cell.folder, cell)
        if other.arguments != cell.arguments or (other.column == cell.column and other is not cell):
            raise ValueError(f"{other.name} and {cell.name} would both be run in {cell.folder}: rename a row or a column")


def file_name(name: str) -> str:
    """A part of a path that cannot leave its folder, as "." and ".." can."""
    plain = "".join(letter if letter.isalnum() or letter in "-_.=" else "-" for letter in name)
    return plain if plain.strip(".") else plain.replace(".", "-")


def _word(value: Any) -> str:
    """An argument on a command line, whose parser reads YAML."""
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if value != value else ".inf" if value > 0 else "-.inf"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def joined(*names: str) -> str:
    """The name of a cell, a run or a place in the table, without its empty parts."""
    return " · ".join(filter(None, names))


def quoted(names: Iterable[str]) -> str:
    """Names separated by commas. Names with blanks or commas are quoted for a shell."""
    return ", ".join(name if re.fullmatch(r"[\w.+=-]+", name) else f'"{name}"' for name in names)


def select(table: Table, names: Sequence[str]) -> Table:
    """The part of the table that has these rows and columns."""
    for name in names:
        if name not in table.rows and name not in table.columns:
            settings = quoted(filter(None, table.columns)) or "(none)"
            raise ValueError(f"--only {name}: the table has the rows {quoted(table.rows)} and the columns {settings}")
    rows = {name: part for name, part in table.rows.items() if name in names} or table.rows
    columns = {name: part for name, part in table.columns.items() if name in names} or table.columns
    average, worst = (table.average, table.worst) if len(columns) == len(table.columns) else ("", "")
    named = {*columns, *filter(None, [average, worst])}
    published = {row: {c: v for c, v in values.items() if c in named} for row, values in table.published.items() if row in rows}
    against = {row: table.against[row] if table.against[row] in rows else next(iter(rows)) for row in rows}
    published = {row: values for row, values in published.items() if values}
    part = replace(table, rows=rows, columns=columns, published=published, average=average, worst=worst)
    return with_against(part, against)


def with_against(table: Table, against: Mapping[str, str]) -> Table:
    """The table with other rows to compare its rows with, without the paper's gains and savings over the former ones."""
    changed = {row for row in table.rows if against[row] != table.against[row]}
    return replace(table, against=against, published=without_comparisons(table.published, changed))
