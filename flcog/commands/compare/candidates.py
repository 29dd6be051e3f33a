"""The configurations that ``--tune`` tries, and their ranks by the clients' validation data."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from flcog.commands.compare.facts import facts_of
from flcog.commands.compare.plan import Cell, Part, Table, cells
from flcog.commands.compare.results import Result, compared_metric, on_validation, result_of
from flcog.core.monitor import lower_is_better

Values = Mapping[str, Any]
"""Values by option."""

Train = Callable[[Sequence[Cell]], None]
"""Trains cells. A failed one is an error."""


@dataclass
class Candidate:
    """A configuration of a row in a setting.

    Args:
        row, setting: its place.
        values: of the tuned options.
        arm: a table of this configuration alone, with the tuning seeds.
        runs: its runs.
        stopped: the round after which it was stopped, because others were better; None if all rounds are trained.
    """

    row: str
    setting: str
    values: Values
    arm: Table
    runs: Sequence[Cell]
    stopped: int | None = None

    def results(self, until: float = math.inf) -> list[Result]:
        """Its results by the validation metric, after the first rounds."""
        return [_validated(cell, self.arm, until) for cell in self.runs]

    def rank(self, results: Sequence[Result]) -> tuple[float, float]:
        """Smaller is better: rounds to the target if the column has one, then the summary. A diverged run is worst."""
        if any(result.diverged for result in results):
            return math.inf, math.inf
        summary = self.arm.summary_of(self.runs[0].column)
        scores = [result.scores["best" if summary == "val" else summary] for result in results]
        rounds = [next(iter(result.targets.values()))[0] if result.targets else math.inf for result in results]
        return statistics.fmean(rounds), sign(results) * statistics.fmean(scores)


def candidates(table: Table, out: Path, extra: Sequence[str]) -> list[Candidate]:
    """All configurations with their cells. An option that a row fixes in a column is not tuned there."""
    found: list[Candidate] = []
    for column, setting in table.columns.items():
        place = table.settings[column]
        if any(candidate.setting == place for candidate in found):
            continue
        for row, part in table.rows.items():
            free = {option: values for option, values in part.tune.items() if option not in part.columns.get(place, {})}
            for chosen in product(*free.values()):
                values = dict(zip(free, chosen, strict=True))
                name = ", ".join([row, *(f"{option.rpartition('.')[2]}={value}" for option, value in values.items())])
                arm = with_values(part, place, values)
                one = replace(table, rows={name: arm}, columns={column: setting}, seeds=table.tuning_seeds)
                found.append(Candidate(row, place, values, one, cells(one, out, extra)))
    return found


def in_places(found: Sequence[Candidate]) -> dict[tuple[str, str], list[Candidate]]:
    """The candidates by row and setting, where they are rivals."""
    places: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in found:
        places.setdefault((candidate.row, candidate.setting), []).append(candidate)
    return places


def with_values(part: Part, setting: str, values: Values) -> Part:
    """A row with these values in a setting."""
    return replace(part, columns={**part.columns, setting: {**part.columns.get(setting, {}), **values}})


def sign(results: Sequence[Result]) -> int:
    """1 if a lower score is better, else -1."""
    return 1 if lower_is_better(results[0].metric or "") else -1


def _validated(cell: Cell, table: Table, until: float) -> Result:
    history, run = [row for row in cell.history() if row["round"] <= until], cell.run
    if run is not None and not history and cell.finished:  # it diverged in round 1
        return result_of(cell, history, facts_of(cell, run), table.last, finished=True)
    metric = compared_metric(cell.metric, history)
    twin = on_validation(metric or "")
    # Columns of `RoundsToTarget` may be about the test set.
    history = [{name: value for name, value in row.items() if not name.startswith("to_")} for row in history]
    if run is None or not any(twin in row for row in history):
        raise ValueError(f"{cell.name} logged no {twin}, by which --tune chooses: set data.client_val, or another metric")
    return result_of(replace(cell, metric=twin), history, facts_of(cell, run), table.last, finished=True)
