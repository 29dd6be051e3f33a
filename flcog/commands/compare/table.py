"""A table of ``flcog compare``, as its YAML file describes it: its rows and columns, and the pairs to compare."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, cast

import yaml
from jsonargparse import ArgumentError, ArgumentParser
from jsonargparse.typing import NonNegativeInt, PositiveInt, register_type

import flcog.callbacks
from flcog.commands import shipped_configs
from flcog.commands.errors import cut
from flcog.core.monitor import Metric, Mode
from flcog.core.yaml_files import TextKeys, load_yaml, refuse_doubles

Summary = Literal["best", "last", "mean", "val"]
"""The score of a run: its best evaluation, the last, the mean of the last few, or the evaluation in the round with the best validation."""

Spread = Literal["std", "sem", "interval", "rounds"]
"""The figure after ±: standard deviation over seeds, standard error of the mean, half of its 95 % interval, or deviation over rounds."""

Quantity = Literal["score", "gain", "rounds", "seconds", "bytes", "saved"]
"""The compared metric (shares in percent), its difference from the compared row, the rounds to a target, a run's total time, its bytes in
both directions, and the saved per cent of the other row's bytes to the target."""

OF_TWO_ROWS = ("gain", "saved")
"""Quantities that compare a row with another one."""


class Figure(NamedTuple):
    """A published figure."""

    value: float
    spread: float | None = None  # the paper's ±
    beyond: bool = False  # whether it is a lower bound, such as the rounds to a target that was not reached
    within: float = 0.0  # half the width of a range, such as 3 for "14 to 20"


class Figures(TypedDict, total=False):
    """The figures of a cell."""

    score: Figure
    gain: Figure
    rounds: Figure
    seconds: Figure
    bytes: Figure
    saved: Figure


SPLIT = "partition_seed"


@dataclass(frozen=True)
class Row:
    """An arm: its config files and options; further options in single columns; and values to try with --tune, by option."""

    configs: tuple[Path, ...] = ()
    arguments: dict = field(default_factory=dict)
    columns: dict[str, dict] = field(default_factory=dict)
    tune: dict[str, list] = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """A setting: its config files and options, and the score of the first metric whose round is read off the curve."""

    configs: tuple[Path, ...] = ()
    arguments: dict = field(default_factory=dict)
    target: float | None = None


@dataclass(frozen=True)
class Shown:
    """A metric with its own mode, its own summary, or the last round that counts for its scores and targets."""

    metric: str = ""
    mode: Mode | None = None
    summary: Summary | None = None
    round: PositiveInt | None = None


class View(NamedTuple):
    """A column of the printed table: the runs of one column of the file, seen by one metric; None is the task's main one.

    The validation scores of the ``chooser``, the first metric of the table, choose a run's round for the summary ``val``.
    """

    column: str
    metric: Metric | None
    summary: Summary
    round: int | None
    target: float | None
    chooser: Metric | None = None


class Search(NamedTuple):
    """The search for hyper-parameters (--tune): a sentence for the report, and all configurations as a table."""

    told: str
    grid: Any


@dataclass(frozen=True)
class Table:
    """A table to fill. Its keys:

    Args:
        title: the table's title.
        hypothesis: the hypothesis that was stated before the runs, shown below the title.
        configs: config files for all runs, as after -c of flcog fit.
        arguments: options of flcog fit for all runs, {option: value}.
        rows: the arms by name, each with configs, arguments, columns: {COLUMN: {option: value}} for options in single columns, and
            tune: {option: [values to try with --tune]}; or the file of another table.
        columns: the settings by name, each with configs, arguments and target: 0.97, a score of the first metric on the scale of
            metrics.csv, whose round is read off the curve; or the file of another table.
        seeds: the seeds of every row in every column; [0] by default.
        vary: [seed, partition_seed] if each seed draws its own split of the data; by default all seeds share one, [seed].
        metrics: the column of metrics.csv to compare, by default the task's main one; or several by name, {training:
            training/accuracy, test: {metric: test/foo, mode: min, summary: last, round: 10}}.
        summary: the score of a run to compare with other rows and the paper: best (the default), last, mean (of the last
            evaluations), or val (in the round with the best validation).
        last: the number of evaluations in this mean; 5 by default.
        spread: the figure after ±: std over seeds (the default), sem, interval, or rounds for the deviation of this mean over its
            evaluations.
        overall: further columns over all columns, {Avg.: mean} or {worst case: worst}.
        against: the row to compare the others with, by default the first; or {row: the row to compare it with}.
        published: the paper's figures, shares in percent, {row: {column: figure}}: 73.07 or [73.07, 0.08], or {score: ..., gain: ...,
            rounds: ..., seconds: ..., bytes: ..., saved: per cent of the bytes to a target that are saved}; "> 100" if a target was
            not reached, "14 to 20" for a range of gains.
        margin: the largest difference from the paper that reproduces a figure, in points; or {score: points, rounds: ratio, saved:
            points}. It needs a reason, and is fixed before the runs.
        reason: the reason for the margin and the summary.
        trials: the paper's number of trials, by whose square root its ± is divided; 1 if the paper does not say.
        exploratory: seeds that had been seen before the margin was fixed; verdicts on them are marked.
        reproduces: the tables and figures of papers that it fills, ["PAPER, Table 1"].
        deviations: a sentence for each contradiction to the paper; [] for none.
        unstated: a sentence for each setting that the paper does not state.
    """

    title: str = ""
    hypothesis: str = ""
    configs: tuple[Path, ...] = ()
    arguments: dict = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    seeds: tuple[NonNegativeInt, ...] = (0,)
    vary: tuple[Literal["seed", "partition_seed"], ...] = ("seed",)
    metrics: dict[str, Shown] = field(default_factory=dict)
    summary: Summary = "best"
    last: PositiveInt = 5
    spread: Spread = "std"
    overall: dict[str, Literal["mean", "worst"]] = field(default_factory=dict)
    against: dict[str, str] = field(default_factory=dict)
    published: dict[str, dict[str, Figures]] = field(default_factory=dict)
    margin: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    trials: PositiveInt = 1
    exploratory: tuple[int, ...] = ()
    reproduces: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    unstated: tuple[str, ...] = ()
    path: Path = Path("table.yaml")
    search: Search | None = None
    whole: "Table | None" = None
    """The table as its file has it, if this one is a part of it or has other seeds."""

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def file(self) -> "Table":
        """The table as its file has it."""
        return self.whole or self

    @property
    def varies_split(self) -> bool:
        return SPLIT in self.vary

    @property
    def views(self) -> dict[str, View]:
        """The columns of the printed table: one for each pair of a column and a metric. Targets are scores of the file's first metric."""
        metrics, first = self.metrics or {"": Shown()}, next(iter(self.file.metrics.values()), Shown()).metric
        of = {name: Metric(shown.metric, shown.mode) if shown.metric else None for name, shown in metrics.items()}
        chooser, found = next(iter(of.values())), {}
        for column, part in self.columns.items():
            for name, shown in metrics.items():
                asked = (shown.summary or self.summary, shown.round, part.target if shown.metric == first else None)
                found[f"{column} {name}".strip()] = View(column, of[name], *asked, chooser)
        return found

    def stated(self, metric: str) -> str:
        """A metric's name with the mode that the table states."""
        return next((view.metric for view in self.views.values() if view.metric == metric and view.metric), metric)

    def figures(self, row: str, view: str) -> Mapping[Quantity, Figure]:
        """The paper's figures of a row. Those that compare it with another row count only while it is compared with that one."""
        figures = cast(Mapping[Quantity, Figure], self.published.get(row, {}).get(view, {}))
        other = self.against[row] != self.file.against[row]
        return {name: figure for name, figure in figures.items() if not (other and name in OF_TWO_ROWS)}


def read_table(path: Path) -> Table:
    """Read a table's YAML file. jsonargparse checks the types."""
    given = {name: value for name, value in read_mapping(path).items() if value is not None}
    if not given.get("rows"):
        raise ValueError(f"{path} names no rows: a table has `rows`, a name for each arm with its `configs` or `arguments`")
    parts = ("rows", "columns")
    others = {key: getattr(read_table(path.parent / given.pop(key)), key) for key in parts if isinstance(given.get(key), str)}
    given |= {key: _named(given.get(key) or {"": None}) for key in parts if key not in others}
    against = given.get("against", {})
    for key, one in (("metrics", ""), ("margin", "score"), ("against", "")):
        if key in given and not isinstance(given[key], dict):
            given[key] = {one: given[key]}
    for name, metric in given.get("metrics", {}).items():
        given["metrics"][name] = {"metric": metric} if isinstance(metric, str) else metric
    for cells in given.get("published", {}).values():
        cells |= {column: {"score": cell} for column, cell in cells.items() if not isinstance(cell, dict)}
    try:
        read = _parser().instantiate_classes(_parser().parse_object(given)).as_dict()
    except ArgumentError as error:
        raise ValueError(f"{path}: {cut(str(error))}") from None
    for key in set(parts) - others.keys():
        read[key] = {name: replace(part, configs=_found(part.configs, path)) for name, part in read[key].items()}
    read |= {"configs": _found(read["configs"], path), "seeds": tuple(dict.fromkeys(read["seeds"]))}
    table = replace(Table(**(read | others)), path=path, title=read["title"] or path.stem)
    unknown = [column for row in table.rows.values() for column in row.columns if column not in table.columns]
    if unknown and "rows" not in others:  # rows of another table may have more
        raise ValueError(f"rows in {path} have options in column {unknown[0]}; the table has {', '.join(table.columns)}")
    first, pairs = next(iter(table.rows)), table.against
    pairs = pairs if isinstance(against, dict) else dict.fromkeys(table.rows, pairs[""])
    if unknown := [name for name in (*pairs, *pairs.values()) if name not in table.rows]:
        raise ValueError(f"against in {path} must be a row, or rows by the rows to compare; got {unknown[0]!r}")
    places = {*table.published, *(column for cells in table.published.values() for column in cells)}
    if unknown := sorted(places - {*table.rows, *table.views, *table.overall}):
        raise ValueError(f"published in {path} names {unknown[0]!r}, which is neither a row nor a column of the table")
    return replace(table, against=dict.fromkeys(table.rows, first) | pairs)


def _figure(given: Any) -> Figure:
    """Read a figure: 73.07, [73.07, 0.08] with its ±, "> 100" for a lower bound, or "14 to 20" for a range.

    >>> _figure(">100") == _figure("> 100") == Figure(100.0, beyond=True)
    True
    """
    match str(given).replace(">", "> ").split():
        case [">", bound]:
            return Figure(float(bound), beyond=True)
        case [low, "to", high]:
            return Figure((float(low) + float(high)) / 2, within=abs(float(high) - float(low)) / 2)
    value, spread = given if isinstance(given, list) else (given, None)
    return Figure(float(value), None if spread is None else float(spread))


register_type(Figure, deserializer=_figure, type_check=lambda value, kind: isinstance(value, kind))


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file, whose keys stay as they are written."""
    if path.is_dir() or not path.exists():
        known = f"a name that flcog configs tables/ lists.{shipped_configs.near(path.name)}"
        raise ValueError(f"there is no file {path}: give a table's YAML, or {known}")
    content = load_yaml(path, TextKeys)
    refuse_doubles(path, yaml.compose(path.read_text(encoding="utf-8"), TextKeys))
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be a mapping of names; got {content!r}")
    return content


def _named(parts: Any) -> Any:
    """Parts by name, of which some have no content."""
    return {name: part or {} for name, part in parts.items()} if isinstance(parts, dict) else parts


@cache
def _parser() -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Table, skip={"path", "search", "whole"})
    return parser


def _found(configs: Sequence[Path], table: Path) -> tuple[Path, ...]:
    """Files beside the table, or shipped configs by their names."""
    found = []
    for config in configs:
        own = (table.parent / config).resolve()
        place = own if own.is_file() else shipped_configs.shipped(str(config))
        if place is None:
            raise ValueError(
                f"{table} names {own}, which is no file; paths are relative to {table.parent}, and flcog configs lists shipped configs"
            )
        found.append(place)
    return tuple(found)


def with_bounds(table: Table) -> Table:
    """Add the bounds that papers draw as rows, compared with the first row: all data pooled, and every client alone."""
    found = {name: shipped_configs.shipped(f"methods/{name.lower()}") for name in flcog.callbacks.BOUNDS}
    rows = {name: Row((path,)) for name, path in found.items() if path is not None and name not in table.rows}
    return replace(table, rows={**table.rows, **rows}, against={**table.against, **dict.fromkeys(rows, next(iter(table.rows)))})


def select(table: Table, names: Sequence[str]) -> Table:
    """The part of the table that has these rows, columns and metrics."""
    for name in names:
        if name not in {*table.rows, *table.columns, *table.metrics}:
            columns = shlex.join(filter(None, [*table.columns, *table.metrics])) or "(none)"
            raise ValueError(f"--only {name}: the table has the rows {shlex.join(table.rows)} and the columns {columns}")
    rows = {name: row for name, row in table.rows.items() if name in names} or table.rows
    parts = {name: column for name, column in table.columns.items() if name in names} or table.columns
    metrics = {name: metric for name, metric in table.metrics.items() if name in names} or table.metrics
    overall = table.overall if len(parts) == len(table.columns) else {}
    against = {row: table.against[row] if table.against[row] in rows else next(iter(rows)) for row in rows}
    return replace(table, rows=rows, columns=parts, metrics=metrics, overall=overall, against=against, whole=table.file)
