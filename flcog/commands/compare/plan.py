"""Reads a table's YAML file for ``flcog compare``, and lists the runs that fill it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml

from flcog.run.metrics_rows import read_rows

OUT_REMEDY = "free space or choose another --out"
"""What to do where the folder of the runs and the table cannot be written."""


KEYS = ("title", "configs", "arguments", "rows", "columns", "seeds", "metric", "last", "published")


@dataclass(frozen=True)
class Part:
    """What a row, a column or the whole table adds to a run: files given by ``-c``, and options with their values."""

    configs: tuple[Path, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table that is to be filled.

    Args:
        title: what it shows.
        common: what all runs share.
        rows: arms, by name. Times are shown relative to the first.
        columns: settings, by name.
        seeds: every arm is run with each, in each setting.
        metric: the column of ``metrics.csv`` that is compared; None for the task's main one.
        last: the mean is taken over so many of a run's last evaluations.
        published: a paper's figures in percent, by row and column, to stand beside ours.
    """

    title: str
    common: Part
    rows: Mapping[str, Part]
    columns: Mapping[str, Part]
    seeds: tuple[int, ...]
    metric: str | None
    last: int
    published: Mapping[str, Mapping[str, float]]


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
    """Whether it was left out because another process is training it."""

    @property
    def name(self) -> str:
        return " · ".join(part for part in (self.row, self.column, f"seed {self.seed}") if part)

    @property
    def finished(self) -> bool:
        return (self.folder / "finished").is_file()

    def history(self) -> list[dict[str, float]]:
        """The rows of its ``metrics.csv``, as far as it has come."""
        tables = sorted(self.folder.glob("*/metrics.csv"), key=lambda path: path.stat().st_mtime_ns)
        return read_rows(tables[-1])[0] if tables else []


def read_table(path: Path, within: Sequence[Path] = ()) -> Table:
    """A table's YAML file. Configs that it names, and another table whose rows or columns are its own, are found from its folder.

    Args:
        path: the file.
        within: the tables that led to this one.
    """
    if path.resolve() in within:
        raise ValueError(f"{path} takes its rows or columns from itself: {' -> '.join(map(str, [*within, path]))}")
    content = _read_mapping(path)
    if not content.get("rows"):
        raise ValueError(f"{path} names no rows: a table has `rows`, a name for each arm with its `configs` or `arguments`")
    unknown = sorted(str(key) for key in content.keys() - set(KEYS))
    if unknown:
        raise ValueError(f"{path} has {', '.join(unknown)}; a table may have {', '.join(KEYS)}")

    def parts(key: Literal["rows", "columns"]) -> Mapping[str, Part]:
        value = content.get(key) or {"": None}
        if isinstance(value, str):
            return getattr(read_table(path.parent / value, [*within, path.resolve()]), key)
        if not isinstance(value, dict):
            raise ValueError(
                f"{key} in {path} must be names with their configs or arguments, or another table's file; got {value!r}"
            )
        return {str(name): _part(given, f"{key.removesuffix('s')} {name}", path) for name, given in value.items()}

    rows, columns = parts("rows"), parts("columns")
    common = _part({key: content[key] for key in ("configs", "arguments") if key in content}, "the table", path)
    metric, last = content.get("metric"), content.get("last", 5)
    if not isinstance(metric, str | None):
        raise ValueError(f"metric in {path} must be a column of metrics.csv, such as test/accuracy; got {metric!r}")
    if not _is_whole(last) or last < 1:
        raise ValueError(f"last in {path} must be a whole number of evaluations, at least 1; got {last!r}")
    published, seeds = _published_figures(content, rows, columns, path), _seeds(content, path)
    return Table(str(content.get("title", path.stem)), common, rows, columns, seeds, metric, last, published)


def _read_mapping(path: Path) -> dict[Any, Any]:
    """The file's content, of which all can stand on a command line."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        text = json.dumps(content, ensure_ascii=False, default=str).encode()
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}: give a table's YAML, such as one of configs/tables") from None
    except UnicodeError:
        raise ValueError(f"{path} is not UTF-8: give a table's YAML, such as one of configs/tables") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}; give a table's YAML") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply for a table") from None
    except Exception as error:  # PyYAML lets through whatever its constructors raise at a damaged date or number
        raise ValueError(
            f"{path} is no YAML that a table can be: {' '.join(str(error).split()) or type(error).__name__}"
        ) from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}, not `rows` and what else a table has: see configs/tables")
    if b"\\u0000" in text:
        raise ValueError(f"{path} holds a character that no command line can have, the zero byte: remove it")
    return content


def _part(value: Any, where: str, path: Path) -> Part:
    """What a row, a column or the table itself adds, checked."""
    value = value or {}
    if not isinstance(value, dict) or set(value) - {"configs", "arguments"}:
        raise ValueError(f"{where} in {path} may have configs (a list of files) and arguments (a mapping); got {value!r}")
    names, arguments = value.get("configs") or [], value.get("arguments") or {}
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"configs of {where} in {path} must be a list of files; got {names!r}")
    if not isinstance(arguments, dict) or not all(isinstance(name, str) for name in arguments):
        raise ValueError(f"arguments of {where} in {path} must be options of flcog fit with their values; got {arguments!r}")
    return Part(tuple(_config(name, where, path) for name in names), arguments)


def _config(name: str, where: str, path: Path) -> Path:
    try:
        config = (path.parent / name).resolve()
        found = config.is_file()
    except (OSError, RuntimeError):  # a name that is too long, links in a circle
        config, found = path.parent / name, False
    if not found:
        raise ValueError(f"{where} in {path} names {config}, which is no file; paths are relative to {path.parent}")
    return config


def _published_figures(
    content: dict[Any, Any], rows: Mapping[str, Part], columns: Mapping[str, Part], path: Path
) -> Mapping[str, Mapping[str, float]]:
    published = content.get("published") or {}
    if not isinstance(published, dict) or not all(isinstance(values, dict) for values in published.values()):
        raise ValueError(f"published in {path} must be figures by row and column; got {published!r}")
    figures = {str(row): {str(column): value for column, value in values.items()} for row, values in published.items()}
    for row, values in figures.items():
        for name in [row] * (row not in rows) + [name for name in values if name not in columns]:
            raise ValueError(f"published in {path} names {name!r}, which is neither a row nor a column of the table")
        for column, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"published in {path} must be figures; {row}, {column} is {value!r}".replace(", :", ":"))
    return figures


def _seeds(content: dict[Any, Any], path: Path) -> tuple[int, ...]:
    seeds = content.get("seeds") or [0]
    if not isinstance(seeds, list) or not all(_is_whole(seed) and seed >= 0 for seed in seeds):
        raise ValueError(f"seeds in {path} must be a list of whole numbers, such as [0, 1, 2]; got {seeds!r}")
    return tuple(dict.fromkeys(seeds))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def cells(table: Table, out: Path, extra: Sequence[str]) -> list[Cell]:
    """Every run of the table, with its command line. Columns come before rows, the user's own arguments last."""
    result = []
    for (column, setting), (row, arm), seed in product(table.columns.items(), table.rows.items(), table.seeds):
        folder = out.joinpath(*(_file_name(name) for name in (column, row) if name), f"seed{seed}")
        arguments = ["fit"]
        for part in (table.common, setting, arm):
            arguments += [word for config in part.configs for word in ("-c", str(config))]
        for part in (table.common, setting, arm):
            arguments += [word for key, value in part.arguments.items() for word in (f"--{key}", _word(value))]
        arguments += [*extra, "--seed_everything", str(seed), "--trainer.default_root_dir", str(folder)]
        result.append(Cell(row, column, seed, folder, arguments))
    _check_apart(result)
    return result


def _check_apart(runs: Sequence[Cell]) -> None:
    """Complain of names that differ only in what a folder's name cannot have."""
    seen: dict[Path, Cell] = {}
    for cell in runs:
        other = seen.setdefault(cell.folder, cell)
        if other is not cell:
            raise ValueError(f"{other.name} and {cell.name} would both be run in {cell.folder}: rename a row or a column")


def _file_name(name: str) -> str:
    """Part of a path, which stays below the folder it is joined to: "." and ".." do not."""
    plain = "".join(letter if letter.isalnum() or letter in "-_.=" else "-" for letter in name)
    return plain if plain.strip(".") else plain.replace(".", "-")


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def seeds_run(table: Table, out: Path) -> tuple[int, ...]:
    """The seeds with which any of the table's arms has been run."""
    folders = {cell.folder.parent for cell in cells(table, out, [])}
    names = {path.name.removeprefix("seed") for folder in folders for path in folder.glob("seed*")}
    return tuple(sorted(int(name) for name in names if name.isdigit()))


def select(table: Table, names: Sequence[str]) -> Table:
    """The part of the table that has these rows and columns."""
    for name in names:
        if name not in table.rows and name not in table.columns:
            settings = ", ".join(filter(None, table.columns)) or "(none)"
            raise ValueError(f"--only {name}: the table has the rows {', '.join(table.rows)} and the columns {settings}")
    rows = {name: part for name, part in table.rows.items() if name in names} or table.rows
    columns = {name: part for name, part in table.columns.items() if name in names} or table.columns
    published = {row: {c: v for c, v in values.items() if c in columns} for row, values in table.published.items() if row in rows}
    return replace(table, rows=rows, columns=columns, published={row: values for row, values in published.items() if values})
