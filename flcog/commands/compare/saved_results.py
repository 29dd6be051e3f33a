"""A table's results in one CSV file, a line for each run: every evaluation, the costs and the origin. It replaces run directories."""

import csv
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flcog.commands.compare.results import ELAPSED, FACTS, Record, chooser_of, record_of, result_of
from flcog.commands.compare.runs import Run, runs_of, stated
from flcog.commands.compare.table import Table
from flcog.core.files import write_table
from flcog.core.monitor import Metric, is_personal, main_of

PLACE, ROUND = ("row", "column", "seed"), "round"
MISSING = "-"
"""The mark for a metric that an evaluation lacks."""

ALWAYS = ("test/loss", "val/loss", "train/loss", "comm/up_bytes_total", "comm/total_bytes", "time/simulated", ELAPSED)
ALWAYS_LIKE = ("to_", "val/acc")
"""Metrics, and beginnings of their names, that are kept for each evaluation beside the table's own."""

Key = tuple[str, str, int]
"""Row, column and seed."""


def results_of(table: Table, runs: Sequence[Run], path: Path | None) -> list[dict[str, Any]]:
    """The results of runs in all views, from their directories or else from the file of saved results.

    A saved result belongs to its row, column and seed as long as the table states the same configs and options for them. It also
    replaces a run that has not finished, or that has other settings which the user's own arguments do not ask for.
    """
    kept, found = _read(path) if path else {}, list[tuple[Run, Record]]()
    for run in runs:
        record, line = record_of(run), kept.get((run.row, run.column, run.seed))
        if line and not (record and (run.extra if record.other else record.finished)):
            if record is not None:
                print(f"{path}: shows {run.name}, whose own run has not finished or has other settings", file=sys.stderr)
            record = _record(line)
            if record.facts["settings"] != (now := stated(run.words)):
                raise ValueError(
                    f"{path}: {run.name} was trained with {record.facts['settings']!r}, and the table states {now!r}: delete the line, "
                    "or train it again and give --save-results"
                )
        if record is not None:
            found.append((run, record))
    return [result for results in _seen(table, found) for result in results]


def _seen(table: Table, found: Sequence[tuple[Run, Record]]) -> list[list[dict[str, Any]]]:
    """The results of each run in all views. A column with models at the clients is seen by these models' main metric."""
    mains = {run.column: Metric(main) for run, record in found if is_personal(main := main_of(record.history) or "")}
    views = [(name, view._replace(metric=view.metric or mains.get(view.column))) for name, view in table.views.items()]
    return [
        [result_of(run, name, view, record, table.last) for name, view in views if view.column == run.column]
        for run, record in found
    ]


def write_results(path: Path, table: Table, runs: Sequence[Run]) -> int:
    """Write the finished runs with the table's settings into a file, and keep its lines of other runs. Returns their number."""
    lines: dict[Key, Mapping[str, Any]] = dict(_read(path))
    found = [(run, record) for run in runs if (record := record_of(run)) and record.finished and not record.other]
    for (run, record), results in zip(found, _seen(table, found), strict=True):
        lines[run.row, run.column, run.seed] = _line(run, record, results)
    if found:
        ordered = [lines[key] for key in sorted(lines, key=lambda key: (key[1], key[0], key[2]))]
        write_table(path, ordered, list(dict.fromkeys([*PLACE, *FACTS, ROUND, *(name for line in ordered for name in line)])))
    return len(found)


def seeds_run(table: Table, out: Path, path: Path) -> tuple[int, ...]:
    """The seeds of all runs of the table, also of saved ones."""
    names = {found.name.removeprefix("seed") for run in runs_of(table, out) for found in run.folder.parent.glob("seed*")}
    kept = {seed for row, _, seed in _read(path) if row in table.rows}
    return tuple(sorted(kept | {int(name) for name in names if name.isdigit()}))


def _line(run: Run, record: Record, results: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    metrics, diverged = {result["metric"] for result in results} - {None}, any(result["diverged"] for result in results)
    history = [row for row in record.history if any(name in row for name in metrics)]
    always = {*metrics, *(chooser_of(name, record.history) for name in metrics), *ALWAYS, ROUND}
    names = dict.fromkeys([ROUND, *(name for row in history for name in row)])
    # A value that is not finite tells of a run that has diverged, and of nothing else.
    shown = [{name: value for name, value in row.items() if diverged or math.isfinite(value)} for row in history]
    series = {name: shown for name in names if name in always or name.startswith(ALWAYS_LIKE)}
    line = {"row": run.row, "column": run.column, "seed": run.seed, **record.facts, "diverged": diverged}
    line |= {name: " ".join(_text(row.get(name)) for row in rows) for name, rows in series.items()}
    return {name: "" if value != value or value is False else value for name, value in line.items()}


def _text(value: float | None) -> str:
    return MISSING if value is None else f"{int(value)}" if float(value).is_integer() else repr(value)


def _read(path: Path) -> dict[Key, dict[str, str]]:
    """The lines of the file by run; none if there is no file."""
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {(line["row"], line["column"], int(line["seed"])): line for line in csv.DictReader(file, strict=True, restval="")}


def _record(line: Mapping[str, str]) -> Record:
    empty = {float: math.nan, int: 0, bool: False, str: ""}
    facts = {name: kind(line[name]) if line[name] else empty[kind] for name, kind in FACTS.items()}
    series = {name: text.split(" ") for name, text in line.items() if text and name not in (*PLACE, *FACTS)}
    rows = [dict(zip(series, texts, strict=True)) for texts in zip(*series.values(), strict=True)]
    return Record([{name: float(text) for name, text in row.items() if text != MISSING} for row in rows], facts)
