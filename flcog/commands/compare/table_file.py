"""Reads a table's YAML file for ``flcog compare``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import yaml

import flcog.callbacks
from flcog.commands import shipped_configs
from flcog.commands.compare.axis import read_axis
from flcog.commands.compare.plan import Part, Table
from flcog.commands.compare.published import is_number, read_published
from flcog.commands.compare.table_keys import KEYS, SPLIT, are_texts
from flcog.core.monitor import Metric
from flcog.core.yaml_files import TextKeys, load_yaml, refuse_doubles

FURTHER: Mapping[str, Mapping[str, str]] = {
    "rows": {"columns": "a mapping of arguments for each", "tune": "lists of values to try, by option"},
    "columns": {"target": "the score whose round is read off the curve"},
}
"""Further entries of rows and columns, with their meanings."""

PLAIN = (
    *("last", "confidence", "summary", "over_rounds", "average", "worst"),
    *("reason", "trials", "hypothesis", "halving"),
)
LISTS = ("exploratory", "reproduces", "deviations", "unstated")
"""Keys whose values, and keys whose lists, are the table's as they are."""


def read_table(path: Path, within: Sequence[Path] = ()) -> Table:
    """Read a table's YAML file.

    Args:
        path: the file.
        within: the tables that led to this one.
    """
    return _TableFile(path, within).table()


def with_bounds(table: Table) -> Table:
    """Add the bounds that papers draw as rows, compared with the first row: all data pooled, and every client alone."""
    found = {name: shipped_configs.shipped(f"methods/{name.lower()}") for name in flcog.callbacks.BOUNDS}
    rows = {name: Part((path,)) for name, path in found.items() if path is not None and name not in table.rows}
    first = next(iter(table.rows))
    return replace(table, rows={**table.rows, **rows}, against={**table.against, **dict.fromkeys(rows, first)})


def read_mapping(path: Path) -> dict[Any, Any]:
    """Read a YAML file whose values can be arguments of a command."""
    if path.is_dir() or not path.exists():
        known = f"a name that flcog configs tables/ lists.{shipped_configs.near(path.name)}"
        raise ValueError(f"there is no file {path}: give a table's YAML, or {known}")
    content = load_yaml(path, TextKeys)
    refuse_doubles(path, yaml.compose(path.read_text(encoding="utf-8"), TextKeys))
    try:
        text = json.dumps(content, ensure_ascii=False, default=str).encode()
    except UnicodeError:
        raise ValueError(f"{path} contains characters that are not UTF-8: remove them") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} contains itself ({error}): write its parts out") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}, not a mapping with `rows`: see configs/tables")
    if b"\\u0000" in text:
        raise ValueError(f"{path} contains the zero byte, which no argument of a command can contain: remove it")
    return content


class _TableFile:
    """A table's YAML file. Configs and other tables that it names are looked up from its folder.

    Args:
        path: the file.
        within: the tables that led to this one.
    """

    def __init__(self, path: Path, within: Sequence[Path]) -> None:
        if path.resolve() in within:
            raise ValueError(f"{path} takes its rows or columns from itself: {' -> '.join(map(str, [*within, path]))}")
        self.path, self.within, self.content = path, [*within, path.resolve()], read_mapping(path)
        if not self.content.get("rows"):
            raise ValueError(f"{path} names no rows: a table has `rows`, a name for each arm with its `configs` or `arguments`")
        if unknown := sorted(str(key) for key in self.content.keys() - KEYS.keys()):
            raise ValueError(f"{path} has {', '.join(unknown)}; a table may have {', '.join(KEYS)}")

    def table(self) -> Table:
        """Check the file, and make the table."""
        value = {name: key.value(name, self.content, self.path) for name, key in KEYS.items()}
        rows, columns = self.parts("rows"), self.parts("columns")
        if not isinstance(value["rows"], str):
            self._check_columns(rows, columns)
        columns = self._with_metrics(columns, value["metrics"])
        self._check_values(value, columns)
        named = [*columns, *(value[name] for name in ("average", "worst") if value[name])]
        seeds, margin = tuple(dict.fromkeys(value["seeds"])), value["margin"]
        lists: dict[str, Any] = {name: tuple(value[name]) for name in LISTS}
        made = Table(
            str(value["title"] or self.path.stem),
            self.path.stem,
            self._part({key: value[key] for key in ("configs", "arguments")}, "the table"),
            rows,
            columns,
            seeds=seeds,
            metric=Metric(value["metric"], value["mode"]) if value["metric"] else None,
            published=read_published(value["published"], rows, named, self.path),
            against=self._against(rows),
            figure=read_axis(value["figure"], rows, columns, self.path),
            varies_split=SPLIT in value["vary"],
            margins=margin if isinstance(margin, dict) else {"score": margin} if margin else {},
            planned=seeds,
            tuning_seeds=tuple(value["tuning_seeds"]) or (max(seeds) + 1,),
            all_rows=frozenset([*rows, *flcog.callbacks.BOUNDS]),
            **{name: value[name] for name in PLAIN},
            **lists,
        )
        return replace(made, all_settings=frozenset(made.settings.values()))

    def _with_metrics(self, columns: Mapping[str, Part], metrics: Mapping[str, Any]) -> Mapping[str, Part]:
        """The columns; if there are metrics, a column for each pair of a column and a metric. Targets are scores of the first metric."""
        own = {name: _of_metric(given) for name, given in metrics.items()}
        first = next((one["metric"] for one in own.values()), None)
        found: dict[str, Part] = {}
        for column, part in columns.items():
            for name, one in own.items():
                if (both := f"{column} {name}".strip()) in found:
                    raise ValueError(f"{self.path}: two pairs of a column and a metric are called {both!r}: rename one of them")
                found[both] = replace(part, setting=column, target=part.target if one["metric"] == first else None, **one)
        return found or columns

    def _check_values(self, value: Mapping[str, Any], columns: Mapping[str, Part]) -> None:
        """Refuse keys that contradict each other, and keys without the ones that explain them."""
        if value["metrics"] and value["metric"]:
            raise ValueError(f"{self.path} has both metric and metrics: keep one")
        if value["mode"] and not value["metric"]:
            where = "write {metric: ..., mode: ...} under metrics" if value["metrics"] else "name that metric under metric"
            raise ValueError(f"{self.path} has mode {value['mode']}, which is about one metric: {where}")
        for name in ("average", "worst"):
            if value[name] and (value[name] in columns or (name == "worst" and value[name] == value["average"])):
                raise ValueError(
                    f"{name} in {self.path} must be the name of a further column; {value[name]!r} is a column already"
                )
            metrics = dict.fromkeys(part.metric or value["metric"] or "the main metric" for part in columns.values())
            if value[name] and len(metrics) > 1:
                raise ValueError(
                    f"{name} in {self.path} would mix {' and '.join(metrics)}: remove it, or keep one of them in a table of its own"
                )
        if value["margin"] is not None and not value["reason"]:
            raise ValueError(f"{self.path} has margin {value['margin']}: give the reason for it under reason")
        if value["reproduces"] and "deviations" not in self.content:
            raise ValueError(f"{self.path} has reproduces: list the contradictions to the paper under deviations, [] for none")

    def parts(self, key: Literal["rows", "columns"]) -> Mapping[str, Part]:
        """The rows or columns by name, from this file or from the table that it names."""
        value = self.content.get(key) or {"": None}
        if isinstance(value, str):
            return getattr(read_table(self.path.parent / value, self.within), key)
        if not isinstance(value, dict):
            raise ValueError(
                f"{key} in {self.path} must be names with their configs or arguments, or another table's file; got {value!r}"
            )
        return {str(name): self._part(given, f"{key.removesuffix('s')} {name}", key) for name, given in value.items()}

    def _part(self, value: Any, where: str, key: str = "") -> Part:
        """The configuration of a row, a column or the whole table."""
        value, further = value or {}, FURTHER.get(key, {})
        if not isinstance(value, dict) or set(value) - {"configs", "arguments", *further}:
            more = "".join(f", and {name} ({meaning})" for name, meaning in further.items())
            raise ValueError(
                f"{where} in {self.path} may have configs (a list of files) and arguments (a mapping){more}; got {value!r}"
            )
        names, columns = value.get("configs") or [], value.get("columns") or {}
        if not are_texts(names):
            raise ValueError(f"configs of {where} in {self.path} must be a list of files; got {names!r}")
        if not isinstance(columns, dict):
            raise ValueError(f"columns of {where} in {self.path} must be columns with the row's arguments there; got {columns!r}")
        target = value.get("target")
        if target is not None and not is_number(target):
            raise ValueError(f"target of {where} in {self.path} must be a score such as 0.97; got {target!r}")
        configs = tuple(self._config(name, where) for name in names)
        inside = {str(column): self._arguments(given, f"{where}, {column}") for column, given in columns.items()}
        grid = self._arguments(value.get("tune"), where)
        if wrong := [option for option, values in grid.items() if not isinstance(values, list) or not values]:
            raise ValueError(
                f"tune of {where} in {self.path} must be lists of values by option; {wrong[0]} is {grid[wrong[0]]!r}"
            )
        return Part(configs, self._arguments(value.get("arguments"), where), inside, target=target, tune=grid)

    def _arguments(self, value: Any, where: str) -> Mapping[str, Any]:
        value = value or {}
        if not isinstance(value, dict):
            raise ValueError(f"arguments of {where} in {self.path} must be options of flcog fit with their values; got {value!r}")
        return value

    def _check_columns(self, rows: Mapping[str, Part], columns: Mapping[str, Part]) -> None:
        """Refuse rows with arguments in columns that the table does not have. Rows of another table may have more."""
        for name, row in rows.items():
            if unknown := [column for column in row.columns if column not in columns]:
                raise ValueError(
                    f"row {name} in {self.path} has columns {', '.join(unknown)}; the table has {', '.join(columns)}"
                )

    def _config(self, name: str, where: str) -> Path:
        """A file in the table's folder, or a shipped config by its name."""
        try:
            config = (self.path.parent / name).resolve()
            found = config.is_file()
        except (OSError, RuntimeError):  # a name that is too long, links in a circle
            config, found = self.path.parent / name, False
        shipped = config if found else shipped_configs.shipped(name)
        if shipped is None:
            raise ValueError(
                f"{where} in {self.path} names {config}, which is no file; paths are relative to {self.path.parent}, "
                f"and flcog configs lists the names of shipped configs"
            )
        return shipped

    def _against(self, rows: Mapping[str, Part]) -> Mapping[str, str]:
        """For each row, the row to compare it with."""
        given = self.content.get("against")
        named = {str(row): str(other) for row, other in given.items()} if isinstance(given, dict) else {}
        default = next(iter(rows)) if given is None or isinstance(given, dict) else str(given)
        for name in [default, *named, *named.values()]:
            if name not in rows:
                raise ValueError(f"against in {self.path} must be a row, or rows by the rows to compare; got {name!r}")
        return dict.fromkeys(rows, default) | named


def _of_metric(given: Any) -> dict[str, Any]:
    """A column's metric, with its own summary or last round."""
    own = dict(given) if isinstance(given, dict) else {"metric": given}
    return own | {"metric": Metric(own["metric"], own.pop("mode", None))}
