"""``flcog compare TABLE --tune``: chooses each row's hyper-parameters by the clients' validation data, never by the test set.

It trains on further seeds, with the same number of configurations for every row, the row's own values among them. ``tuned.yaml`` has the
choice, the whole grid and the cost.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from flcog.commands.compare.facts import facts_of
from flcog.commands.compare.plan import Cell, Part, Table, apart, cells
from flcog.commands.compare.resolved import resolved, settings_of
from flcog.commands.compare.results import Result, compared_metric, result_of
from flcog.core.files import write_yaml
from flcog.core.monitor import lower_is_better
from flcog.core.text import clock, human
from flcog.core.yaml_files import load_yaml

FILE = "tuned.yaml"
Values = Mapping[str, Any]
"""Values by option."""


@dataclass(frozen=True)
class Candidate:
    """A configuration of a row in a setting, with its runs."""

    row: str
    setting: str
    values: Values
    runs: Sequence[Cell]


def tune(table: Table, out: Path, extra: Sequence[str], train: Callable[[Table, Sequence[Cell]], Sequence[Cell]]) -> Path:
    """Train the grid, and write the choice into ``out``.

    Args:
        table: the table, with ``tune`` in its rows.
        out: its folder; the grid's runs lie in its folder ``tuning``.
        extra: the user's own arguments.
        train: trains cells and returns the failed ones.
    """
    _check_sizes(table)
    found = candidates(table, out / "tuning", extra)
    _check_configurations(table, found, cells(table, out, extra))
    runs = [cell for candidate in found for cell in candidate.runs]
    if failed := train(table, apart(runs)):
        raise ValueError(f"{len(failed)} of {len(runs)} runs of the grid failed, the first, {failed[0].name}: {failed[0].error}")
    write_yaml(out / FILE, _choice(table, found))
    return out / FILE


def candidates(table: Table, out: Path, extra: Sequence[str]) -> list[Candidate]:
    """All configurations with their cells. An option that a row fixes in a column is not tuned there."""
    found: list[Candidate] = []
    for column, setting in table.columns.items():
        place = column if setting.setting is None else setting.setting
        if any(candidate.setting == place for candidate in found):
            continue
        for row, part in table.rows.items():
            free = {option: values for option, values in part.tune.items() if option not in part.columns.get(place, {})}
            for chosen in product(*free.values()):
                values = dict(zip(free, chosen, strict=True))
                name = ", ".join([row, *(f"{option.rpartition('.')[2]}={value}" for option, value in values.items())])
                arm = _with_values(part, place, values)
                one = replace(table, rows={name: arm}, columns={column: setting}, seeds=table.tuning_seeds)
                found.append(Candidate(row, place, values, cells(one, out, extra)))
    return found


def _with_values(part: Part, setting: str, values: Values) -> Part:
    return replace(part, columns={**part.columns, setting: {**part.columns.get(setting, {}), **values}})


def _check_sizes(table: Table) -> None:
    sizes = {row: math.prod(map(len, part.tune.values())) for row, part in table.rows.items()}
    if all(not part.tune for part in table.rows.values()):
        raise ValueError(f"--tune: no row of {table.name} has tune, the values to try: tune: {{model.optimizer.lr: [0.01, 0.1]}}")
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{row} {size}" for row, size in sizes.items())
        raise ValueError(
            f"tune gives the rows of {table.name} unlike numbers of configurations ({counts}): give each row the same"
        )
    if used := set(table.tuning_seeds) & {*table.planned, *table.seeds}:
        raise ValueError(f"tuning_seeds of {table.name} has {min(used)}, a seed of the table: choose others")


def _check_configurations(table: Table, found: Sequence[Candidate], own: Sequence[Cell]) -> None:
    """Refuse a grid without the row's own values, or without a validation set."""
    for cell in own:
        config = resolved(cell, cell.common_arguments)
        if config is None:
            raise ValueError(
                f"{cell.name}: no configuration can be read; flcog compare {table.name} --dry-run prints the command"
            )
        if not (config["data"].get("init_args") or {}).get("client_val"):
            raise ValueError(
                f"--tune chooses by the clients' validation data, and {cell.name} has none: set data.client_val, such as 0.1"
            )
        grid = [candidate for candidate in found if (candidate.row, candidate.setting) == (cell.row, cell.setting)]
        tried = [resolved(replace(candidate.runs[0], seed=cell.seed), candidate.runs[0].common_arguments) for candidate in grid]
        if not any(other is not None and settings_of(other) == settings_of(config) for other in tried):
            options = ", ".join(table.rows[cell.row].tune)
            raise ValueError(f"tune of row {cell.row} lacks the row's own values of {options}: add them")


def _validated(cell: Cell, table: Table) -> Result:
    """The result of a cell by its validation metric."""
    history, run = cell.history(), cell.run
    metric = compared_metric(cell.metric, history)
    twin = f"val/{(metric or '').removeprefix('test/')}"
    # Columns of `RoundsToTarget` may be about the test set.
    history = [{name: value for name, value in row.items() if not name.startswith("to_")} for row in history]
    if run is None or not any(twin in row for row in history):
        raise ValueError(f"{cell.name} logged no {twin}, by which --tune chooses: set data.client_val, or another metric")
    return result_of(replace(cell, metric=twin), history, facts_of(cell, run), table.last, finished=True)


def _rank(results: Sequence[Result], summary: str) -> tuple[float, float]:
    """Smaller is better: rounds to the target if the column has one, then the summary. A diverged run is worst."""
    if any(result.diverged for result in results):
        return math.inf, math.inf
    scores = [result.scores["best" if summary == "val" else summary] for result in results]  # type: ignore[index]
    rounds = [next(iter(result.targets.values()))[0] if result.targets else math.inf for result in results]
    return statistics.fmean(rounds), _sign(results) * statistics.fmean(scores)


def _sign(results: Sequence[Result]) -> int:
    return 1 if lower_is_better(results[0].metric or "") else -1


def _choice(table: Table, found: Sequence[Candidate]) -> dict[str, Any]:
    """The content of ``tuned.yaml``."""
    grid: list[dict[str, Any]] = []
    chosen: dict[str, dict[str, Values]] = {}
    edges: list[list[str]] = []
    results = {id(candidate): [_validated(cell, table) for cell in candidate.runs] for candidate in found}
    for row, setting in dict.fromkeys((candidate.row, candidate.setting) for candidate in found):
        rivals = [candidate for candidate in found if (candidate.row, candidate.setting) == (row, setting)]
        ranks = {id(rival): _rank(results[id(rival)], table.summary_of(rival.runs[0].column)) for rival in rivals}
        best = min(rivals, key=lambda rival: ranks[id(rival)])
        chosen.setdefault(row, {})[setting] = dict(best.values)
        tried = table.rows[row].tune
        edges += [[row, setting, option] for option, value in best.values.items() if at_edge(value, tried[option])]
        for rival in rivals:
            rounds, score = ranks[id(rival)]
            line: dict[str, Any] = {
                "row": row,
                "setting": setting,
                **rival.values,
                "validation": _sign(results[id(rival)]) * score,
                "rounds_to_target": rounds,
            }
            line |= {"diverged": any(result.diverged for result in results[id(rival)]), "chosen": rival is best}
            grid.append({name: value for name, value in line.items() if value not in (math.inf, -math.inf)})
    facts = [result.facts for each in results.values() for result in each]
    cost: dict[str, float] = {"runs": len(facts), "rounds": sum(fact.rounds for fact in facts)}
    cost |= {"seconds": sum(fact.seconds for fact in facts), "bytes": sum(fact.total_bytes for fact in facts)}
    return {"table": table.name, "seeds": list(table.tuning_seeds), "chosen": chosen, "edges": edges, "cost": cost, "grid": grid}


def at_edge(value: Any, tried: Sequence[Any]) -> bool:
    """Whether a chosen number is the smallest or the largest of those tried."""
    numbers = [other for other in tried if isinstance(other, int | float)]
    return len(numbers) > 1 and value in (min(numbers), max(numbers))


def with_choice(table: Table, *files: Path) -> Table:
    """The table with the values that ``--tune`` chose, from the first of these files that exists."""
    path = next((path for path in files if path.is_file()), None)
    if path is None or not any(part.tune for part in table.rows.values()):
        return table
    content = load_yaml(path)
    try:
        if content["table"] != table.name:
            raise ValueError(
                f"{path} belongs to table {content['table']}, not to {table.name}: delete it, or choose another --out"
            )
        rows = dict(table.rows)
        for row, by_setting in content["chosen"].items():
            for setting, values in by_setting.items():
                if row in rows:
                    rows[row] = _with_values(rows[row], setting, values)
        return replace(table, rows=rows, tuned=(_told(content),))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}): delete it, and give --tune again") from None


def _told(content: Mapping[str, Any]) -> str:
    edges, cost = {tuple(edge) for edge in content["edges"]}, content["cost"]
    chosen = "; ".join(
        f"{' · '.join(filter(None, (row, setting)))}: "
        + ", ".join(
            f"{name} {value}" + " (at the edge of the grid)" * ((row, setting, name) in edges) for name, value in values.items()
        )
        for row, by_setting in content["chosen"].items()
        for setting, values in by_setting.items()
        if values
    )
    spent = f"{cost['runs']} runs, {cost['rounds']:,} rounds, {clock(cost['seconds'])} and {human(cost['bytes'])}"
    return f"Tuned on seed {', '.join(map(str, content['seeds']))} by the clients' validation data: {chosen}. The search took {spent}."
