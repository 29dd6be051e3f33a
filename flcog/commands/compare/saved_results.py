"""A table's results in one CSV file, with a line for each run: every evaluation, the costs and the origin. It replaces run directories."""

import csv
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from flcog.commands.compare.facts import Facts, History, facts_of
from flcog.commands.compare.plan import Cell, Table, apart, cells
from flcog.commands.compare.resolved import digest
from flcog.commands.compare.results import Result, chooser_of, compared_metric, result_of
from flcog.commands.compare.settings_of_runs import changed_by_options, table_settings
from flcog.core.files import write_table

FORMAT = 2
"""Raised if the columns change."""

PLACE = ("table", "format", "row", "setting", "seed")
FACTS = {field.name: type(field.default) for field in fields(Facts) if field.name != "other"}
LATER = ("own_commit",)
"""Facts that earlier files lack."""
ROUND, MISSING = "round", "-"
"""The column with the rounds of the evaluations, and the mark for a metric that an evaluation lacks."""

ALWAYS = ("test/loss", "val/loss", "train/loss", "comm/up_bytes_total", "comm/total_bytes", "time/simulated")
ALWAYS_LIKE = ("to_", "val/acc")
"""Metrics, and beginnings of their names, that are kept for each evaluation beside the table's own."""

Key = tuple[str, str, int]
"""Row, setting and seed."""


class Record(NamedTuple):
    """A finished run: its evaluations, the facts about it, and its row in the file."""

    history: History
    facts: Facts
    row: int = 0


def write_results(path: Path, table: Table, runs: Sequence[Cell]) -> int:
    """Write the finished runs with the table's settings into a file, and keep its lines of other cells. Returns their number.

    Args:
        path: the file, such as results/fedcog.csv.
        table: the table.
        runs: its cells.
    """
    metrics = {cell.metric for cell in runs if cell.metric}
    new = {}
    for cell in apart([cell for cell in runs if cell.finished and cell.run]):
        if cell.run and not (facts := facts_of(cell, cell.run)).other:
            facts = replace(facts, diverged=result_of(cell, cell.history(), facts, table.last, finished=True).diverged)
            new[cell.row, cell.setting, cell.seed] = _line(table.name, cell, Record(cell.history(), facts), metrics)
    kept = {key: line for _, key, line in _lines(path, table) if key not in new}
    lines = sorted([*kept.values(), *new.values()], key=lambda line: (line["setting"], line["row"], int(line["seed"])))
    if new:
        write_table(path, lines, list(dict.fromkeys([*PLACE, *FACTS, ROUND, *(name for line in lines for name in line)])))
    return len(new)


def results_of(table: Table, runs: Sequence[Cell], saved: Path | None) -> list[Result]:
    """The results of the cells, from their runs or else from the file of saved results.

    A saved result also replaces a run that has not finished, or that has settings which neither the table nor the command asks for.
    """
    kept = read_results(saved, table, runs) if saved else {}
    found: list[tuple[str, Result]] = []
    replaced: dict[Path, str] = {}
    for cell in runs:
        run, record = cell.run, kept.get((cell.row, cell.setting, cell.seed))
        if run is not None and (run.rows or cell.finished):
            own = result_of(cell, run.rows, facts_of(cell, run), table.last, cell.finished)
            if record is None or (cell.extra if own.facts.other else own.finished):
                found.append((str(run.table), own))
                continue
            replaced[cell.folder] = own.name
        if record is not None:
            facts = replace(record.facts, other=changed_by_options(cell))
            result = result_of(cell, record.history, facts, table.last, finished=True)
            found.append((f"{saved}, row {record.row}", result))
    _print_replaced(saved, list(replaced.values()))
    _check_scores(table, found)
    return [result for _, result in found]


def _print_replaced(saved: Path | None, names: Sequence[str]) -> None:
    """Print which saved results replace runs, and how to see the runs."""
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        what = f"the finished result of {names[0]}{more} is shown, because the run has not finished or has other settings"
        print(f"{saved}: {what}; --results with an empty folder shows the run", file=sys.stderr, flush=True)


def _check_scores(table: Table, results: Sequence[tuple[str, Result]]) -> None:
    """Refuse a run without the table's primary summary, or without the metric of other seeds of its arm.

    The mean over seeds would be one of fewer seeds, or of unlike metrics.
    """
    metrics: dict[tuple[str, str], str | None] = {}
    ended = [(origin, result) for origin, result in results if result.finished and not result.diverged]
    for _, result in ended:
        metrics[result.row, result.column] = metrics.get((result.row, result.column)) or result.metric
    for origin, result in ended:
        metric = metrics[result.row, result.column]
        if result.metric != metric:
            raise ValueError(
                f"{origin}: {result.name} has no {metric}, which other seeds have: delete this run, and give the command again"
            )
        if result.scores and table.summary_of(result.column) not in result.scores:
            raise ValueError(
                f"{origin}: {result.name} has no validation score, and the summary of {table.name} is val: set data.client_val, or choose "
                "best, last or mean"
            )


def last_result(cell: Cell) -> Result | None:
    """The result of a cell's own run; None before the first round."""
    run = cell.run
    if run is None or not (run.rows or cell.finished):
        return None
    return result_of(cell, run.rows, facts_of(cell, run), 1, cell.finished)


def read_results(path: Path, table: Table, runs: Sequence[Cell]) -> dict[Key, Record]:
    """Read the saved results of the cells. A line that belongs to another table or to other settings is an error."""
    wanted, found = {(cell.row, cell.setting, cell.seed): cell for cell in runs}, {}
    for number, key, line in _lines(path, table):
        if key not in wanted:
            continue
        now = digest(table_settings(wanted[key]))
        if line["settings"] != now:
            raise _error(
                path, number, f"its settings {line['settings']!r} are not the table's, {now!r}: the table or a default changed"
            )
        found[key] = _record(path, number, line)
    return found


def seeds_run(table: Table, out: Path, saved: Path) -> tuple[int, ...]:
    """The seeds of all runs of the table's arms."""
    folders = {cell.folder.parent for cell in cells(table, out, [])}
    names = {path.name.removeprefix("seed") for folder in folders for path in folder.glob("seed*")}
    kept = {seed for _, (row, _, seed), _ in _lines(saved, table) if row in table.rows}
    return tuple(sorted(kept | {int(name) for name in names if name.isdigit()}))


def _line(table: str, cell: Cell, record: Record, metrics: set[str]) -> dict[str, Any]:
    compared = [name for name in (*metrics, compared_metric(cell.metric, record.history)) if name]
    history = [row for row in record.history if any(name in row for name in compared)]
    always = {*compared, *(chooser_of(name, record.history) for name in compared), *ALWAYS}
    names = dict.fromkeys(name for row in history for name in row)
    kept = [name for name in names if name in always or name.startswith(ALWAYS_LIKE)]
    line = {"table": table, "format": FORMAT, "row": cell.row, "setting": cell.setting, "seed": cell.seed}
    line |= {name: value for name, value in asdict(record.facts).items() if name in FACTS}
    # A value that is not finite tells of a run that has diverged, and of nothing else.
    shown = [{name: value for name, value in row.items() if record.facts.diverged or math.isfinite(value)} for row in history]
    line |= {name: " ".join(_text(row.get(name)) for row in shown) for name in (ROUND, *kept)}
    return {name: "" if value != value or value is False else value for name, value in line.items()}


def _text(value: float | None) -> str:
    return MISSING if value is None else f"{int(value)}" if float(value).is_integer() else repr(value)


def _lines(path: Path, table: Table) -> Iterator[tuple[int, Key, dict[str, str]]]:
    """The lines of the file with their numbers and cells; nothing if there is no file. Any fault is an error of one line."""
    if not path.is_file():
        return
    seen: dict[Key, int] = {}
    for number, line in enumerate(_read(path), start=2):
        if line["table"] != table.name or line["format"] != str(FORMAT):
            raise _error(
                path, number, f"table {line['table']!r} in format {line['format']}; expected {table.name!r} in format {FORMAT}"
            )
        if line["row"] not in table.all_rows or line["setting"] not in table.all_settings:
            raise _error(path, number, f"the table has no row {line['row']!r} with the setting {line['setting']!r}")
        if not line["seed"].isdigit():
            raise _error(path, number, f"the seed must be a whole number; got {line['seed']!r}")
        key = (line["row"], line["setting"], int(line["seed"]))
        if key in seen:
            raise _error(path, number, f"row {seen[key]} has the same run, {key[0]} · {key[1]} · seed {key[2]}")
        seen[key] = number
        yield number, key, line


def _read(path: Path) -> list[dict[str, str]]:
    surplus = "surplus"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True, restkey=surplus, restval="")
            lines = list(reader)
            names = list(reader.fieldnames or ())
    except (UnicodeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}): write it again with --save-results") from None
    faults = [f"no column {name}" for name in (*PLACE, *FACTS, ROUND) if name not in (*names, *LATER)]
    faults += [f"column {name} is there twice" for name in names if names.count(name) > 1]
    if faults:
        raise ValueError(f"{path}, row 1: {faults[0]}: write it again with --save-results")
    for number, line in enumerate(lines, start=2):
        if surplus in line:
            raise _error(path, number, "too many values")
    return lines


def _record(path: Path, number: int, line: Mapping[str, str]) -> Record:
    try:
        facts = Facts(**{name: _fact(line.get(name, ""), kind) for name, kind in FACTS.items()})
        series = {name: text.split(" ") for name, text in line.items() if text and name not in (*PLACE, *FACTS)}
        count = len(series.get(ROUND, []))
        if wrong := next((name for name, texts in series.items() if len(texts) != count), None):
            raise ValueError(f"{wrong} has {len(series[wrong])} values for {count} rounds")
        history = [
            {name: float(texts[place]) for name, texts in series.items() if texts[place] != MISSING} for place in range(count)
        ]
        rounds = [row.get(ROUND, 0) for row in history]
        if rounds != sorted({int(max(round, 0)) for round in rounds} - {0}) or not (rounds or facts.diverged):
            raise ValueError("its rounds must be whole numbers that rise from 1 or more")
        bad = [name for row in history for name, value in row.items() if not math.isfinite(value)]
        if bad and not facts.diverged:
            raise ValueError(f"{bad[0]} has a value that is not finite, though the run has not diverged")
    except (KeyError, ValueError) as error:
        raise _error(path, number, str(error)) from None
    return Record(history, facts, number)


def _fact(text: str, kind: type) -> Any:
    if kind is not float:
        return bool(text) if kind is bool else kind(text or 0) if kind is int else text
    number = float(text) if text else math.nan
    if text and not 0 <= number < math.inf:
        raise ValueError(f"{text} is no figure of a run")
    return number


def _error(path: Path, number: int, text: str) -> ValueError:
    return ValueError(f"{path}, row {number}: {text}. Delete the row, or write it again with --save-results")
