"""``flcog compare TABLE --tune``: chooses each row's hyper-parameters by the clients' validation data, never by the test set.

It trains on further seeds, with the same number of configurations for every row, the row's own values among them. ``tuned.yaml`` has the
choice, the whole grid and the cost.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flcog.commands.compare.candidates import Candidate, Values, candidates, in_places, sign, with_values
from flcog.commands.compare.halving import stop_worse_halves
from flcog.commands.compare.plan import Cell, Table, apart, cells, joined
from flcog.commands.compare.resolved import arguments_of, digest, fault, resolved, settings_of
from flcog.commands.compare.results import Result
from flcog.core.files import write_yaml
from flcog.core.text import clock, figure, human, markdown
from flcog.core.yaml_files import load_yaml

FILE = "tuned.yaml"


def tune(table: Table, out: Path, extra: Sequence[str], train: Callable[[Table, Sequence[Cell]], Sequence[Cell]]) -> Path:
    """Train the grid, and write the choice into ``out``.

    Args:
        table: the table, with ``tune`` in its rows.
        out: its folder; the grid's runs lie in its folder ``tuning``.
        extra: the user's own arguments.
        train: trains cells and returns the failed ones.
    """
    found = checked_candidates(table, out, extra)
    others = _others(table, found, out / FILE)

    def finish(runs: Sequence[Cell]) -> None:
        failed = train(table, apart(runs)) if runs else []
        if failed:
            raise ValueError(
                f"{len(failed)} of {len(runs)} runs of the grid failed, the first, {failed[0].name}: {failed[0].error}"
            )

    if table.halving:
        stop_worse_halves(found, finish)
    finish([cell for candidate in found if candidate.stopped is None for cell in candidate.runs])
    write_yaml(out / FILE, _with_others(_choice(table, found), others))
    return out / FILE


def checked_candidates(table: Table, out: Path, extra: Sequence[str]) -> list[Candidate]:
    """The candidates of a table; an unfair grid is an error."""
    _check_sizes(table)
    found = candidates(table, out / "tuning", extra)
    _check_configurations(table, found, cells(table, out, extra))
    return found


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
            raise ValueError(f"{cell.name}: {fault(cell)}")
        if not arguments_of(config["data"]).get("client_val"):
            raise ValueError(
                f"--tune chooses by the clients' validation data, and {cell.name} has none: set data.client_val, such as 0.1"
            )
        grid = [candidate for candidate in found if (candidate.row, candidate.setting) == (cell.row, cell.setting)]
        if reason := next(filter(None, (fault(candidate.runs[0]) for candidate in grid)), ""):
            raise ValueError(f"tune of row {cell.row}: {reason}")
        tried = [resolved(replace(candidate.runs[0], seed=cell.seed), candidate.runs[0].common_arguments) for candidate in grid]
        tried_settings = [settings_of(other) for other in tried if other is not None]
        if len(set(map(digest, tried_settings))) < len(tried_settings):
            words = [word for word in cell.extra if word.partition("=")[0].removeprefix("--") in table.rows[cell.row].tune]
            after = (
                f": {' '.join(words or cell.extra)} after -- takes the place of values to try, leave it out" if cell.extra else ""
            )
            raise ValueError(
                f"tune of row {cell.row} has configurations that are the same run{after or ': list each value once'}"
            )
        if settings_of(config) not in tried_settings:
            options = ", ".join(table.rows[cell.row].tune)
            raise ValueError(f"tune of row {cell.row} lacks the row's own values of {options}: add them")


def _choice(table: Table, found: Sequence[Candidate]) -> dict[str, Any]:
    """The content of ``tuned.yaml``."""
    grid: list[dict[str, Any]] = []
    chosen: dict[str, dict[str, Values]] = {}
    edges: list[list[str]] = []
    results = {id(each): each.results(math.inf if each.stopped is None else each.stopped) for each in found}
    for (row, setting), rivals in in_places(found).items():
        ranks = {id(rival): rival.rank(results[id(rival)]) for rival in rivals}
        best = min((rival for rival in rivals if rival.stopped is None), key=lambda rival: ranks[id(rival)])
        if ranks[id(best)] == (math.inf, math.inf):
            place = f"row {row}" + f" in {setting}" * bool(setting)
            raise ValueError(f"every configuration of {place} diverged: add smaller values to its tune")
        chosen.setdefault(row, {})[setting] = dict(best.values)
        tried = table.rows[row].tune
        edges += [[row, setting, option] for option, value in best.values.items() if at_edge(value, tried[option])]
        for rival in rivals:
            rounds, score = ranks[id(rival)]
            line: dict[str, Any] = {"row": row, "setting": setting, **rival.values}
            line |= {"validation": sign(results[id(rival)]) * score, "rounds_to_target": rounds}
            line |= {"diverged": any(result.diverged for result in results[id(rival)]), "chosen": rival is best}
            line |= {} if rival.stopped is None else {"stopped": rival.stopped}
            grid.append({name: value for name, value in line.items() if value not in (math.inf, -math.inf)})
    searches = [
        {"row": row, "setting": setting, "settings": _digest(rivals), **_cost([results[id(rival)] for rival in rivals])}
        for (row, setting), rivals in in_places(found).items()
    ]
    content = {"table": table.name, "seeds": list(table.tuning_seeds), "chosen": chosen, "edges": edges, "searches": searches}
    return content | {"cost": _total(searches), "grid": grid}


def _cost(results: Sequence[Sequence[Result]]) -> dict[str, float]:
    facts = [result.facts for each in results for result in each if result.rounds]
    cost: dict[str, float] = {"runs": sum(map(len, results)), "rounds": sum(fact.rounds for fact in facts)}
    return cost | {"seconds": sum(fact.seconds for fact in facts), "bytes": sum(fact.total_bytes for fact in facts)}


def _total(searches: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {name: sum(search[name] for search in searches) for name in ("runs", "rounds", "seconds", "bytes")}


def _digest(rivals: Sequence[Candidate]) -> str:
    """Equal for searches with the same settings, values to try and seeds in a row and a setting."""
    cell, seeds = rivals[0].runs[0], rivals[0].arm.tuning_seeds
    config = resolved(cell, cell.common_arguments)
    settings = {} if config is None else settings_of(config)  # with the first values of the grid, whatever the row's own are
    return digest({"settings": settings, "grid": [rival.values for rival in rivals], "seeds": seeds})


def _others(table: Table, found: Sequence[Candidate], path: Path) -> dict[str, Any]:
    """The content of an earlier file about the table's rows and settings outside the selection (``--only``)."""
    if not path.is_file():
        return {}
    searched = in_places(found)
    with _readable(path):
        content = _of_table(path, table)

        def kept(row: str, setting: str) -> bool:
            return row in table.all_rows and setting in table.all_settings and (row, setting) not in searched

        lines = [line for line in content["grid"] if kept(line["row"], line["setting"])]
        searches = [line for line in content.get("searches", ()) if kept(line["row"], line["setting"])]
        if lines and not searches:
            raise ValueError(
                f"{path}, of an earlier version, has no costs of the rows outside --only: give --tune without --only"
            )
        chosen = {row: {s: v for s, v in values.items() if kept(row, s)} for row, values in content["chosen"].items()}
        edges = [edge for edge in content["edges"] if kept(*edge[:2])]
    return {"chosen": chosen, "edges": edges, "searches": searches, "grid": lines}


def _with_others(content: dict[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """The choice, together with an earlier one for other rows and settings."""
    joint = {name: [*others.get(name, ()), *content[name]] for name in ("edges", "searches", "grid")}
    before, now = others.get("chosen", {}), content["chosen"]
    chosen = {row: {**before.get(row, {}), **now.get(row, {})} for row in {**before, **now}}
    chosen = {row: values for row, values in chosen.items() if values}
    return {**content, **joint, "chosen": chosen, "cost": _total(joint["searches"])}


def at_edge(value: Any, tried: Sequence[Any]) -> bool:
    """Whether a chosen number is the smallest or the largest of those tried."""
    numbers = [other for other in tried if isinstance(other, int | float)]
    return len(numbers) > 1 and value in (min(numbers), max(numbers))


def with_choice(table: Table, *files: Path, extra: Sequence[str] = ()) -> Table:
    """The table with the values that ``--tune`` chose, from the first of these files that exists.

    Args:
        table: the table.
        files: written by ``--tune``.
        extra: the user's own arguments. A search with other settings than theirs and the table's is an error.
    """
    path = next((path for path in files if path.is_file()), None)
    if path is None or not any(part.tune for part in table.rows.values()):
        return table
    with _readable(path):
        content = _of_table(path, table)
        rows = dict(table.rows)
        for row, by_setting in content["chosen"].items():
            for setting, values in by_setting.items():
                if row in rows:
                    rows[row] = with_values(rows[row], setting, values)
        searched = {(line["row"], line["setting"]): line["settings"] for line in content.get("searches", ())}
        tuned = replace(table, rows=rows, tuned=(_told(content),), grid=_grid(content))
    for place, rivals in in_places(candidates(table, path.parent, extra) if searched else []).items():
        if searched.get(place, now := _digest(rivals)) != now:
            raise ValueError(
                f"{path}: the search for {joined(*place)} had other settings, values to try or seeds than the table with the options after "
                "--: put them back, or give --tune again"
            )
    return tuned


def _of_table(path: Path, table: Table) -> Any:
    content = load_yaml(path)
    if content["table"] != table.name:
        raise ValueError(f"{path} belongs to table {content['table']}, not to {table.name}: delete it, or choose another --out")
    return content


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Report the first fault of a file in one line."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}): delete it, and give --tune again") from None


def _told(content: Mapping[str, Any]) -> str:
    edges, cost = {tuple(edge) for edge in content["edges"]}, content["cost"]
    chosen = "; ".join(
        f"{joined(row, setting)}: "
        + ", ".join(
            f"{name} {value}" + " (at the edge of the grid)" * ((row, setting, name) in edges) for name, value in values.items()
        )
        for row, by_setting in content["chosen"].items()
        for setting, values in by_setting.items()
        if values
    )
    spent = f"{cost['runs']} runs, {cost['rounds']:,} rounds, {clock(cost['seconds'])} and {human(cost['bytes'])}"
    return f"Tuned on seed {', '.join(map(str, content['seeds']))} by the clients' validation data: {chosen}. The search took {spent}."


def _grid(content: Mapping[str, Any]) -> str:
    """The whole grid as a table, with chosen values at its edge marked."""
    lines, edges = content["grid"], {tuple(edge) for edge in content["edges"]}

    def value(line: Mapping[str, Any], option: str) -> str:
        at_the_edge = line["chosen"] and (line["row"], line["setting"], option) in edges
        return f"{line.get(option, '')}" + " (edge of the grid)" * at_the_edge

    facts = ("row", "setting", "validation", "rounds_to_target", "diverged", "chosen", "stopped")
    options = [name for name in dict.fromkeys(name for line in lines for name in line) if name not in facts]
    shown = {
        "Row": [line["row"] for line in lines],
        "Setting": [line["setting"] for line in lines],
        **{name: [value(line, name) for line in lines] for name in options},
        "Validation": ["diverged" if line["diverged"] else figure(line["validation"]) for line in lines],
        "Rounds to the target": [f"{line['rounds_to_target']:.4g}" if "rounds_to_target" in line else "" for line in lines],
        "Stopped after round": [line.get("stopped", "") for line in lines],
        "Chosen": [line["chosen"] for line in lines],
    }
    filled = {name: values for name, values in shown.items() if any(value != "" for value in values)}
    return markdown(list(filled), zip(*filled.values(), strict=True))
