"""Reads a table's YAML file for ``flcog compare``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

import flcog.callbacks
from flcog.commands import shipped_configs
from flcog.commands.compare.plan import SPLIT_SEED, Part, Summary, Table
from flcog.commands.compare.published import read_published

KEYS = {
    "title": "what the table shows",
    "configs, arguments": "files and options of flcog fit that all runs get",
    "rows": "the arms by name, each with its configs and arguments, and those that it has in single columns, "
    "columns: {NAME: {option: value}}; or another table's file",
    "columns": "the settings by name, with their configs and arguments; or another table's file",
    "seeds": "[0] by default",
    "vary": "what a seed draws: [seed], or [seed, partition_seed] where it draws the split too",
    "metric": "the column of metrics.csv that is compared; the task's main one by default",
    "metrics": "several of them by name, each of which makes a column of every setting: {training: training/accuracy, test: "
    "test/accuracy}; {metric: ..., summary: ..., round: ...} for one with a summary of its own, or of a run's rounds up to this one",
    "summary": "which score of a run is compared with the other arms and the paper: best, last, mean of the last evaluations, or "
    "val, the one at the round where the validation set's was best",
    "last": "how many evaluations that mean takes, 5 by default",
    "over_rounds": "true where that mean shows its deviation over these evaluations, not over the seeds",
    "average": "the name of a further column, the mean over all settings",
    "against": "the row that the others are compared with, or {row: row it is compared with}; the first by default",
    "confidence": "0.95 for 95 % intervals",
    "published": "the paper's figures, {row: {column: figure}}: 73.07 or [73.07, 0.08], or {score: ..., rounds: ..., seconds: ..., "
    'bytes: ..., saved: how many per cent fewer bytes to a target than the row compared with}; "> 100" where a target was not reached',
    "reproduces": '["PAPER, Table 1"], what of which paper the table fills',
    "deviations": "a sentence for each thing that is not as in the paper, or not said there; [] where nothing is",
    "trunks": "false where every run trains all of its rounds itself, so that times can be compared, as with --no-trunks",
}
"""What a table's YAML file may say."""


def read_table(path: Path, within: Sequence[Path] = ()) -> Table:
    """A table's YAML file. Configs that it names, and another table whose rows or columns are its own, are found from its folder.

    Args:
        path: the file.
        within: the tables that led to this one.
    """
    if path.resolve() in within:
        raise ValueError(f"{path} takes its rows or columns from itself: {' -> '.join(map(str, [*within, path]))}")
    content = read_mapping(path)
    if not content.get("rows"):
        raise ValueError(f"{path} names no rows: a table has `rows`, a name for each arm with its `configs` or `arguments`")
    known = ", ".join(KEYS)
    unknown = sorted(str(key) for key in content.keys() - set(known.split(", ")))
    if unknown:
        raise ValueError(f"{path} has {', '.join(unknown)}; a table may have {known}")

    def parts(key: Literal["rows", "columns"]) -> Mapping[str, Part]:
        value = content.get(key) or {"": None}
        if isinstance(value, str):
            return getattr(read_table(path.parent / value, [*within, path.resolve()]), key)
        if not isinstance(value, dict):
            raise ValueError(
                f"{key} in {path} must be names with their configs or arguments, or another table's file; got {value!r}"
            )
        return {str(name): _part(given, f"{key.removesuffix('s')} {name}", path, key) for name, given in value.items()}

    rows, columns = parts("rows"), parts("columns")
    if not isinstance(content["rows"], str):
        _check_columns(rows, columns, path)
    columns = _with_metrics(columns, content, path)
    common = _part({key: content[key] for key in ("configs", "arguments") if key in content}, "the table", path)
    average = _text(content, "average", path)
    if average and average in columns:
        raise ValueError(
            f"average in {path} is the name of a further column, the mean over the others; {average!r} is one of them"
        )
    reproduces, deviations = _texts(content, "reproduces", path), _texts(content, "deviations", path)
    if reproduces and "deviations" not in content:
        raise ValueError(f"{path} says what it reproduces: say under deviations what is not as in the paper, [] where nothing is")
    named = [*columns, *([average] if average else [])]
    return Table(
        str(content.get("title", path.stem)),
        common,
        rows,
        columns,
        seeds=_seeds(content, path),
        metric=_metric(content, path),
        last=_last(content, path),
        published=read_published(content.get("published"), rows, dict.fromkeys(named), path),
        against=_against(content, rows, path),
        varies_split=_varies_split(content, path),
        confidence=_confidence(content, path),
        summary=_summary(content, path),
        over_rounds=_yes_or_no(
            content, "over_rounds", "whether the mean of the last evaluations shows its deviation over them", path
        ),
        average=average,
        reproduces=reproduces,
        deviations=deviations,
        trunks=_yes_or_no(content, "trunks", "whether runs may share their first rounds", path, default=True),
    )


def with_bounds(table: Table) -> Table:
    """The table with the bounds that papers draw as rows more, beside the first: all data pooled, and every client for itself."""
    found = {name: shipped_configs.shipped(f"methods/{name.lower()}") for name in flcog.callbacks.BOUNDS}
    rows = {name: Part((path,)) for name, path in found.items() if path is not None and name not in table.rows}
    first = next(iter(table.rows))
    return replace(table, rows={**table.rows, **rows}, against={**table.against, **dict.fromkeys(rows, first)})


def read_mapping(path: Path) -> dict[Any, Any]:
    """The file's content, of which all can stand on a command line."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        text = json.dumps(content, ensure_ascii=False, default=str).encode()
    except FileNotFoundError:
        known = f"one that flcog configs tables/ lists.{shipped_configs.near(path.name)}"
        raise ValueError(f"there is no file {path}: give a table's YAML, or {known}") from None
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


def _part(value: Any, where: str, path: Path, key: str = "") -> Part:
    """What a row, a column or the table itself adds, checked."""
    value, in_rows = value or {}, ", and columns (a mapping of arguments for each)" if key == "rows" else ""
    if not isinstance(value, dict) or set(value) - {"configs", "arguments", *(["columns"] if in_rows else [])}:
        raise ValueError(
            f"{where} in {path} may have configs (a list of files) and arguments (a mapping){in_rows}; got {value!r}"
        )
    names, columns = value.get("configs") or [], value.get("columns") or {}
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"configs of {where} in {path} must be a list of files; got {names!r}")
    if not isinstance(columns, dict):
        raise ValueError(f"columns of {where} in {path} must be columns with the row's arguments there; got {columns!r}")
    configs = tuple(_config(name, where, path) for name in names)
    inside = {str(column): _arguments(given, f"{where}, {column}", path) for column, given in columns.items()}
    return Part(configs, _arguments(value.get("arguments"), where, path), inside)


def _arguments(value: Any, where: str, path: Path) -> Mapping[str, Any]:
    value = value or {}
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"arguments of {where} in {path} must be options of flcog fit with their values; got {value!r}")
    return value


def _check_columns(rows: Mapping[str, Part], columns: Mapping[str, Part], path: Path) -> None:
    """Refuse rows with arguments in columns that the table does not have. (Rows of another table may know more.)"""
    for name, row in rows.items():
        if unknown := [column for column in row.columns if column not in columns]:
            raise ValueError(f"row {name} in {path} has columns {', '.join(unknown)}; the table has {', '.join(columns)}")


def _config(name: str, where: str, path: Path) -> Path:
    """A file, from the table's folder, or a config that comes with flcog, by its name."""
    try:
        config = (path.parent / name).resolve()
        found = config.is_file()
    except (OSError, RuntimeError):  # a name that is too long, links in a circle
        config, found = path.parent / name, False
    if found:
        return config
    if (shipped := shipped_configs.shipped(name)) is None:
        raise ValueError(
            f"{where} in {path} names {config}, which is no file; paths are relative to {path.parent}, "
            f"and flcog configs lists those that go by name"
        )
    return shipped


def _seeds(content: dict[Any, Any], path: Path) -> tuple[int, ...]:
    seeds = content.get("seeds") or [0]
    if not isinstance(seeds, list) or not all(_is_whole(seed) and seed >= 0 for seed in seeds):
        raise ValueError(f"seeds in {path} must be a list of whole numbers, such as [0, 1, 2]; got {seeds!r}")
    return tuple(dict.fromkeys(seeds))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _metric(content: dict[Any, Any], path: Path) -> str | None:
    metric = content.get("metric")
    if not isinstance(metric, str | None):
        raise ValueError(f"metric in {path} must be a column of metrics.csv, such as test/accuracy; got {metric!r}")
    return metric


def _with_metrics(columns: Mapping[str, Part], content: dict[Any, Any], path: Path) -> Mapping[str, Part]:
    """The columns, or one for each of them and each of the metrics."""
    metrics = content.get("metrics")
    if metrics is None:
        return columns
    if not isinstance(metrics, dict) or not metrics or not all(map(_is_metric, metrics.values())):
        raise ValueError(
            f"metrics in {path} must be columns of metrics.csv by name, {{test: test/accuracy}}, or with a summary or a last round of "
            f"their own, {{test: {{metric: test/accuracy, summary: last, round: 10}}}}; got {metrics!r}"
        )
    if "metric" in content:
        raise ValueError(f"{path} has both metric and metrics: keep one")
    given = {name: metric if isinstance(metric, dict) else {"metric": metric} for name, metric in metrics.items()}
    return {
        f"{column} {name}".strip(): replace(part, setting=column, **metric)
        for column, part in columns.items()
        for name, metric in given.items()
    }


def _is_metric(value: Any) -> bool:
    """Whether it is a column of metrics.csv, or one with the summary by which it is compared, or the last round that counts."""
    if not isinstance(value, dict):
        return isinstance(value, str)
    summary, round = value.get("summary", "best"), value.get("round", 1)
    known = isinstance(value.get("metric"), str) and not value.keys() - {"metric", "summary", "round"}
    return known and summary in get_args(Summary) and _is_whole(round) and round > 0


def _last(content: dict[Any, Any], path: Path) -> int:
    last = content.get("last", 5)
    if not _is_whole(last) or last < 1:
        raise ValueError(f"last in {path} must be a whole number of evaluations, at least 1; got {last!r}")
    return last


def _varies_split(content: dict[Any, Any], path: Path) -> bool:
    vary, split = content.get("vary", ["seed"]), SPLIT_SEED.rpartition(".")[2]
    if vary not in (["seed"], ["seed", split]):
        raise ValueError(f"vary in {path} says what a seed draws, [seed] or [seed, {split}]; got {vary!r}")
    return split in vary


def _confidence(content: dict[Any, Any], path: Path) -> float:
    confidence = content.get("confidence", 0.95)
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 < confidence < 1:
        raise ValueError(f"confidence in {path} must lie between 0 and 1, such as 0.95; got {confidence!r}")
    return float(confidence)


def _summary(content: dict[Any, Any], path: Path) -> Summary:
    summary = content.get("summary", "best")
    if summary not in get_args(Summary):
        raise ValueError(f"summary in {path} must be {' or '.join(get_args(Summary))}; got {summary!r}")
    return summary


def _yes_or_no(content: dict[Any, Any], key: str, meaning: str, path: Path, default: bool = False) -> bool:
    value = content.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{key} in {path} must be true or false, {meaning}; got {value!r}")
    return value


def _against(content: dict[Any, Any], rows: Mapping[str, Part], path: Path) -> Mapping[str, str]:
    """For each row the one it is compared with: the named one, or the first."""
    given = content.get("against")
    named = {str(row): str(other) for row, other in given.items()} if isinstance(given, dict) else {}
    default = next(iter(rows)) if given is None or isinstance(given, dict) else str(given)
    for name in [default, *named, *named.values()]:
        if name not in rows:
            raise ValueError(f"against in {path} must be a row, or rows with the row that each is compared with; got {name!r}")
    return dict.fromkeys(rows, default) | named


def _text(content: dict[Any, Any], key: str, path: Path) -> str:
    value = content.get(key) or ""
    if not isinstance(value, str):
        raise ValueError(f"{key} in {path} must be a text; got {value!r}")
    return value


def _texts(content: dict[Any, Any], key: str, path: Path) -> tuple[str, ...]:
    value = content.get(key) or []
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{key} in {path} must be a list of texts; got {value!r}")
    return tuple(value)
