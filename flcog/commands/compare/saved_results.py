"""A table's results in one file, with a line for each finished run. It replaces run directories that no longer exist."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from flcog.commands.compare.plan import Cell, Summary, Table, cells
from flcog.commands.compare.results import Result, result_of
from flcog.commands.compare.settings_of_runs import digest
from flcog.core.files import write_table

TEXTS = ("row", "column", "metric", "commit", "arguments")
WHOLE = ("seed", "rounds", "averaged")
SHARED = ("shared_rounds", "shared_acting_rounds", "trunk")
"""Columns of files with a run that shares rounds."""
LOAD = "waiting"
"""A column of files with a run that waited for cores."""
NUMBERS = ("deviation", "seconds", "acting_seconds", "up_bytes", "total_bytes")
SUMMARIES: Sequence[Summary] = get_args(Summary)
COLUMNS, SURPLUS = (*TEXTS, *WHOLE, *NUMBERS, *SUMMARIES, "settings"), "surplus"
ROUNDS_TO, BYTES_TO, SIMULATED_TO = "rounds_to_", "bytes_to_", "simulated_seconds_to_"


def write_results(path: Path, results: Sequence[Result], runs: Sequence[Cell]) -> int:
    """Write the finished runs into a file, and keep its lines of other rows, columns and seeds. Returns the number of finished runs.

    Args:
        path: the file, such as results/fedcog.csv.
        results: the results of ``runs``.
        runs: the table's cells.
    """
    digests = {(cell.row, cell.column, cell.seed): digest(cell) for cell in runs}
    new = {_key(result): _line(result, digests[_key(result)]) for result in results if result.finished and not result.outdated}
    kept = {_key(result): line for result, line in _lines(path) if _key(result) not in new}
    lines = sorted([*kept.values(), *new.values()], key=lambda line: (line["column"], line["row"], int(line["seed"])))
    columns = [*TEXTS[:2], "seed", *(name for line in lines for name in line)]
    if new:
        write_table(path, lines, list(dict.fromkeys(columns)))
    return len(new)


def read_results(path: Path, runs: Sequence[Cell]) -> list[Result]:
    """Read the results of a table's cells from a file. If the table or the compared metric has changed, they are outdated."""
    metrics = {(cell.row, cell.column, cell.seed): cell.metric for cell in runs}
    digests = {(cell.row, cell.column, cell.seed): digest(cell) for cell in runs}
    found = ((result, digests.get(_key(result)), line["settings"]) for result, line in _lines(path))
    return [
        replace(result, outdated=now != then or metrics[_key(result)] not in (None, result.metric))
        for result, now, then in found
        if now
    ]


def results_of(table: Table, runs: Sequence[Cell], saved: Path | None) -> list[Result]:
    """The results of the cells, from their runs or else from the file of saved results."""
    kept = {_key(result): result for result in (read_results(saved, runs) if saved else [])}
    found = [result_of(cell, cell.metric, table.last) or kept.get((cell.row, cell.column, cell.seed)) for cell in runs]
    return [result for result in found if result]


def seeds_run(table: Table, out: Path, saved: Path) -> tuple[int, ...]:
    """The seeds of all runs of the table's arms."""
    folders = {cell.folder.parent for cell in cells(table, out, [])}
    names = {path.name.removeprefix("seed") for folder in folders for path in folder.glob("seed*")}
    parts = {(row, column) for row in table.rows for column in table.columns}
    kept = {result.seed for result, _ in _lines(saved) if (result.row, result.column) in parts}
    return tuple(sorted(kept | {int(name) for name in names if name.isdigit()}))


def _key(result: Result) -> tuple[str, str, int]:
    return result.row, result.column, result.seed


def _line(result: Result, settings: str) -> dict[str, Any]:
    plain = {name: getattr(result, name) for name in (*TEXTS[:2], "seed", "rounds", "metric", "averaged", *NUMBERS)}
    line = plain | {summary: result.scores.get(summary, math.nan) for summary in SUMMARIES}
    for target, (rounds, sent) in result.targets.items():
        line |= {f"{ROUNDS_TO}{target}": rounds, f"{BYTES_TO}{target}": sent}
    line |= {f"{SIMULATED_TO}{target}": seconds for target, seconds in result.simulated.items()}
    line |= {name: getattr(result, name) for name in SHARED if result.shared_rounds}
    line |= {LOAD: result.waiting} if result.disturbed else {}
    line |= {"commit": result.commit, "arguments": result.arguments, "settings": settings}
    return {name: "" if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()}


def _lines(path: Path) -> list[tuple[Result, Mapping[str, str]]]:
    """The results in the file, with their lines. Empty if there is no file."""
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True, restkey=SURPLUS)
            if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
                raise ValueError(f"no column {missing[0]}")
            return [(_result(line), line) for line in reader]
    except (UnicodeError, csv.Error, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}): write it again with --save-results") from None


def _result(line: Mapping[str, str]) -> Result:
    if SURPLUS in line:
        raise ValueError(f"too many values for {line['row']}")
    given: dict[str, Any] = {name: line[name] for name in TEXTS} | {"metric": line["metric"] or None}
    given |= {name: int(line[name]) for name in WHOLE}
    given |= {name: int(line[name]) if name != "trunk" else line[name] for name in SHARED if line.get(name)}
    given |= {name: _number(line[name]) for name in NUMBERS}
    given |= {LOAD: float(line[LOAD])} if line.get(LOAD) else {}
    scores = {summary: _number(line[summary]) for summary in SUMMARIES}
    targets = {
        name.removeprefix(ROUNDS_TO): (_number(value), _number(line[name.replace(ROUNDS_TO, BYTES_TO)]))
        for name, value in line.items()
        if name.startswith(ROUNDS_TO) and value
    }
    known = {name: score for name, score in scores.items() if not math.isnan(score)}
    simulated = {
        name.removeprefix(SIMULATED_TO): _number(value) for name, value in line.items() if name.startswith(SIMULATED_TO) and value
    }
    return Result(**given, finished=True, scores=known, targets=targets, simulated=simulated)


def _number(text: str) -> float:
    number = float(text) if text else math.nan
    if text and not math.isfinite(number):
        raise ValueError(f"{text} is no figure of a run")
    return number
