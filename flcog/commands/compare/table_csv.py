"""The filled table as a CSV file for programs: a line for each row in each setting, with separate columns for deviations."""

import math
import statistics
from collections.abc import Mapping
from pathlib import Path

from flcog.commands.compare.folder import OUT_REMEDY
from flcog.commands.compare.plan import Summary
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import Result, standard_deviation
from flcog.commands.compare.savings import saving
from flcog.commands.compare.verdicts import Verdict, verdicts
from flcog.core.files import write_table

NAMES: Mapping[Summary, str] = {"best": "best", "val": "at_best_val", "last": "last", "mean": "mean_of_last"}
Line = dict[str, str | float]


def write_csv(filled: ResultTable, path: Path) -> None:
    """Write the file. ``*_std`` is the standard deviation over seeds, ``*_low`` and ``*_high`` are the ends of a confidence interval."""
    judged: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts(filled):
        judged.setdefault((verdict.row, verdict.column), []).append(verdict)
    lines = []
    for column in filled.columns:
        comparisons = filled.comparisons(column)
        for row in filled.table.rows:
            line = _scores(filled, row, column) | _costs(filled.of(row, column)) | _savings(filled, row, column)
            if row in comparisons:
                found = comparisons[row]
                line |= {"against": found.against, "pairs": found.difference.count, "difference": found.difference.mean}
                line |= {"difference_low": found.difference.low, "difference_high": found.difference.high}
                line |= {"p": found.difference.p, "p_holm": found.p_holm}
            for verdict in judged.get((row, column), []):
                line |= _published(verdict)
            lines.append({name: _text(value) for name, value in line.items()})
    write_table(path, lines, _in_order(lines), OUT_REMEDY)


def _scores(filled: ResultTable, row: str, column: str) -> Line:
    results = filled.of(row, column)
    line: Line = {"row": row, "column": column, "seeds": len(results), "finished": sum(result.finished for result in results)}
    line["diverged"] = filled.diverged(row, column)
    line["metric"] = next((result.metric for result in results if result.metric), "")
    line["in_percent"] = int(filled.is_percent(column))
    for summary in NAMES:
        values = list(filled.scores(row, column, summary).values())
        if values:
            line[NAMES[summary]] = statistics.fmean(values)
            line[f"{NAMES[summary]}_std"] = standard_deviation(values)
    if results:
        line["evaluations_in_mean"] = statistics.fmean(result.averaged for result in results)
        line["mean_of_last_std_over_rounds"] = filled.deviation(row, column)
    return line


def _costs(results: list[Result]) -> Line:
    line: Line = {}
    for target in sorted({target for result in results for target in result.targets}):
        reached = [result.targets[target] for result in results if target in result.targets]
        line[f"reached_{target}"] = len(reached)
        line[f"rounds_to_{target}"] = statistics.fmean(rounds for rounds, _ in reached)
        line[f"bytes_to_{target}"] = statistics.fmean(sent for _, sent in reached)
        if simulated := [result.simulated[target] for result in results if target in result.simulated]:
            line[f"simulated_seconds_to_{target}"] = statistics.fmean(simulated)
    costs = {
        "seconds": [result.facts.seconds for result in results],
        "seconds_of_an_acting_round": [result.facts.acting_seconds for result in results],
        "rounds_timed_in_another_run": [result.facts.shared_rounds or math.nan for result in results],
        "up_bytes": [result.facts.up_bytes for result in results],
        "total_bytes": [result.facts.total_bytes for result in results],
    }
    known = {name: [value for value in values if not math.isnan(value)] for name, values in costs.items()}
    return line | {name: statistics.fmean(values) for name, values in known.items() if values}


def _savings(filled: ResultTable, row: str, column: str) -> Line:
    found = saving(filled, row, column)
    if found is None:
        return {}
    return {
        "times_fewer_rounds": found.times.mean,
        "bytes_saved_percent": found.percent.mean,
        "savings_are_lower_bounds": int(found.beyond),
    }


def _published(verdict: Verdict) -> Line:
    name = "published" if verdict.quantity == "score" else f"published_{verdict.quantity}"
    line: Line = {name: verdict.published.value}
    if verdict.published.spread is not None:
        line[f"{name}_std"] = verdict.published.spread
    if verdict.published.beyond:
        line[f"{name}_is_a_lower_bound"] = 1
    if verdict.interval is not None:
        line |= {f"{name}_difference_low": verdict.interval[0], f"{name}_difference_high": verdict.interval[1]}
    return line | {f"{name}_verdict": verdict.shown}


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else "" if math.isnan(value) else f"{value:.10g}"


def _in_order(lines: list[dict[str, str]]) -> list[str]:
    """The columns in order of appearance. A column that only later lines have comes after its left neighbour in these lines."""
    columns: list[str] = []
    for line in lines:
        place = 0
        for name in line:
            if name in columns:
                place = columns.index(name) + 1
            else:
                columns.insert(place, name)
                place += 1
    return columns
