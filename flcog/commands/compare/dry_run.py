"""``flcog compare TABLE --dry-run``: each cell's configuration, its estimated time, and the results that it reuses. Writes nothing."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flcog.commands.compare.candidates import Candidate
from flcog.commands.compare.filling import known_runs
from flcog.commands.compare.given_options import SEED, SPLIT_SEED
from flcog.commands.compare.plan import Cell, Table, joined
from flcog.commands.compare.resolved import Config, Settings, fault, settings_of, unmade
from flcog.commands.compare.results import Result
from flcog.commands.compare.settings_of_runs import refusal, takes_no_more
from flcog.core.files import short
from flcog.core.text import clock

SEEDS = (SEED, "trainer.seed", SPLIT_SEED)
Place = tuple[str, str]
"""Row and setting."""


@dataclass
class Arm:
    """The cells of one row in one setting, which differ only in seeds, and their settings without seeds; empty for an invalid command."""

    cells: list[Cell] = field(default_factory=list)
    settings: Settings = field(default_factory=dict)

    def unlike(self, others: Sequence["Arm"]) -> list[str]:
        """The names of its settings that some of the others do not share."""
        return [name for name, value in self.settings.items() if any(arm.settings.get(name) != value for arm in others)]


def describe(runs: Sequence[Cell], results: Sequence[Result], root: Path) -> str:
    """Describe the cells of a table. A run with other settings is an error, as without ``--dry-run``.

    Args:
        runs: the cells, once each.
        results: of the table's finished and unfinished runs, also saved ones, as far as there are any.
        root: the folder of all tables, where the same runs may be finished.
    """
    if refused := next(filter(None, map(refusal, runs)), ""):
        raise ValueError(refused)
    known, configs = known_runs(runs, root)
    arms = _arms(runs, configs)
    valid = [arm for arm in arms.values() if arm.settings]
    varying = {name for arm in valid for name in arm.unlike(valid)}
    common = {name: value for arm in valid[:1] for name, value in arm.settings.items() if name not in varying}
    lines = ["Settings of all runs, without paths and devices:", *_listed(common, common)]
    times: list[float] = []
    for (row, setting), arm in arms.items():
        lines += ["", joined(row, setting) or "the run", *_settings(arm, arms, (row, setting), varying)]
        for cell in arm.cells:
            line, took = _plan(cell, known, results, configs)
            times += [] if took is None else [took]
            lines.append(f"  seed {cell.seed}: {line}")
    failing = len(unreadable(runs))
    sure = [took for took in times if took]
    left = f", about {clock(sum(sure))} one after another" if sure else ""
    rest = f" ({len(times) - len(sure)} of them with unknown times not counted)" if sure and len(sure) < len(times) else ""
    fail = f"{failing} cannot be trained, " if failing else ""
    done = len(runs) - failing - len(times)
    total = f"{len(runs)} runs: {done} are reused, {fail}{len(times)} are to be trained{left}{rest}"
    return "\n".join([*lines, "", total])


def unreadable(runs: Sequence[Cell]) -> dict[str, str]:
    """The errors in the command lines of unfinished runs, and of their methods' constructors, by name."""
    return {cell.name: reason for cell in runs if not cell.finished and (reason := fault(cell) or unmade(cell))}


def describe_grid(table: Table, found: Sequence[Candidate], results: Sequence[Result], root: Path) -> str:
    """List the runs of ``--tune``. The arguments are those of ``describe``, and the table with its candidates."""
    runs = [cell for candidate in found for cell in candidate.runs]
    known, configs = known_runs(runs, root)
    seeds = ", ".join(map(str, table.tuning_seeds))
    lines = [f"With --tune, {len(runs)} runs on seed {seeds} come before the others:"]
    lines += [f"  {cell.name}: {refusal(cell) or _plan(cell, known, results, configs)[0]}" for cell in runs]
    early = ["  The worse half of each row is stopped early (halving)."] * table.halving
    return "\n".join([*lines, *early])


def _arms(runs: Sequence[Cell], configs: Mapping[str, Config]) -> dict[Place, Arm]:
    arms: dict[Place, Arm] = {}
    for cell in runs:
        arm = arms.setdefault((cell.row, cell.setting), Arm())
        arm.cells.append(cell)
        if cell.name in configs:
            arm.settings = {name: value for name, value in settings_of(configs[cell.name]).items() if name not in SEEDS}
    return arms


def _settings(arm: Arm, arms: Mapping[Place, Arm], place: Place, varying: set[str]) -> list[str]:
    """The settings of an arm that are not common to the table, sorted by the neighbours that have others."""
    if not arm.settings:
        return [f"  cannot be trained: {fault(arm.cells[0])}"]
    row = arm.unlike([other for (name, _), other in arms.items() if name == place[0] and other.settings])
    column = arm.unlike([other for (_, name), other in arms.items() if name == place[1] and other.settings])
    titles = {
        (True, True): "unlike other cells of its row and of its column",
        (True, False): "unlike other cells of its row",
        (False, True): "unlike other cells of its column",
        (False, False): "unlike cells in other rows and columns",
    }
    lines: list[str] = []
    for places, title in titles.items():
        names = [name for name in arm.settings if name in varying and (name in row, name in column) == places]
        lines += [f"  {title}:", *_listed(arm.settings, names, "    ")] if names else []
    return lines


def _listed(settings: Settings, names: Any, margin: str = "  ") -> list[str]:
    return [f"{margin}{name}: {settings[name]}" for name in names]


def _plan(
    cell: Cell, known: Mapping[str, Path], results: Sequence[Result], configs: Mapping[str, Config]
) -> tuple[str, float | None]:
    """What will be done for a cell, and the estimated seconds, which are 0 if they are unknown; None if it reuses a finished run."""
    if cell.finished and not takes_no_more(cell):
        return f"reused, finished in {short(cell.files.source.path)}", None
    if not cell.begun and (other := known.get(cell.identity)):
        return f"reused, the same run as {short(other)}", None
    if cell.name not in configs:
        return "cannot be trained", None
    plan = f"to be resumed after round {len(cell.history())}" if cell.begun else "to be trained"
    took, basis = _estimate(cell, results, configs)
    return "; ".join(filter(None, (plan, basis))), took


def _estimate(cell: Cell, results: Sequence[Result], configs: Mapping[str, Config]) -> tuple[float, str]:
    """The estimated seconds of a run and their basis: rounds of the same arm, or else of other rows in its setting."""
    here = [run for run in results if run.column == cell.column and run.rounds and run.facts.seconds > 0 and not run.facts.other]
    same = [run for run in here if run.row == cell.row]
    if not (same or here):
        return 0.0, "time unknown, because no run of this column has begun"
    pace = statistics.fmean(run.facts.seconds / run.rounds for run in same or here)
    took = pace * max(0, configs[cell.name]["trainer"]["rounds"] - cell.rounds_before)
    basis = "this row" if same else ", ".join(dict.fromkeys(run.row for run in here))
    return took, f"about {clock(took)}, at {pace:.2g} s a round as in earlier runs of {basis}"
