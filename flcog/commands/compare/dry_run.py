"""``flcog compare TABLE --dry-run``: the settings of each row in each column, what is done for each run, and the estimated time."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas

from flcog.commands.compare.runs import SEED, SPLIT_SEED, Run, joined
from flcog.commands.compare.settings import Settings, check_settings, fault, resolve, settings_of
from flcog.core.text import clock

SEEDS = (SEED, "trainer.seed", SPLIT_SEED)
Arm = tuple[str, str]
"""Row and column."""


def describe(runs: Sequence[Run], results: Sequence[Mapping[str, Any]] = ()) -> str:
    """Describe runs that would be trained, with estimates of the time from what is known of the table.

    A run with other settings is an error, as without ``--dry-run``.
    """
    for run in runs:
        check_settings(run)
    arms: dict[Arm, list[Run]] = {}
    for run in runs:
        arms.setdefault((run.row, run.column), []).append(run)
    settings = {arm: _settings(of[0]) for arm, of in arms.items()}
    known = [each for each in settings.values() if each]
    common = {
        name: value for name, value in (known[0] if known else {}).items() if all(each.get(name) == value for each in known)
    }
    lines = ["Settings of all runs, without paths and devices:", *_listed(common)]
    paces, left = _paces(results), 0.0
    for (row, column), of in arms.items():
        own = {name: value for name, value in settings[row, column].items() if name not in common}
        lines += ["", joined(row, column) or "the run", *_listed(own)]
        for run in of:
            plan, took = _plan(run, paces)
            lines.append(f"  seed {run.seed}: {plan}")
            left += took
    faults = {run: reason for run in runs if not run.finished and (reason := fault(run))}
    done = sum(run.finished for run in runs)
    time = f", about {clock(left)} one after another" if left else ""
    lines += ["", f"{len(runs)} runs: {done} are finished, {len(runs) - done} are to be trained{time}"]
    if faults:
        run, reason = next(iter(faults.items()))
        print("\n".join(lines))
        raise ValueError(f"{len(faults)} of {len(runs)} runs cannot be trained, the first, {run.name}: {reason}")
    return "\n".join(lines)


def _settings(run: Run) -> Settings:
    return {name: value for name, value in settings_of(resolve(run)).items() if name not in SEEDS}


def _listed(settings: Settings) -> list[str]:
    return [f"  {name}: {value}" for name, value in settings.items()]


def _paces(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The seconds of a round by column and row, from the rounds that were trained."""
    frame = pandas.DataFrame(list(results), columns=["row", "column", "seconds", "rounds"])
    frame = frame[frame.seconds > 0]
    return {
        str(column): {"": part.seconds.sum() / part.rounds.sum(), **(rows.seconds.sum() / rows.rounds.sum()).to_dict()}
        for column, part in frame.groupby("column")
        for rows in [part.groupby("row")]
    }


def _plan(run: Run, paces: Mapping[str, Mapping[str, float]]) -> tuple[str, float]:
    """What is done for a run, and its estimated seconds at the pace of its row, or else of its column; 0 if nothing is known."""
    if run.finished:
        return "finished", 0.0
    if (config := resolve(run)) is None:
        return f"cannot be trained: {fault(run)}", 0.0
    done = len(run.history) if run.begun else 0
    plan = f"to be resumed after round {done}" if done else "to be trained"
    column = paces.get(run.column, {})
    if (pace := column.get(run.row, column.get(""))) is None:
        return f"{plan}; time unknown, because no run of this column has begun", 0.0
    took = pace * max(0, config["trainer"]["rounds"] - done)
    return f"{plan}; about {clock(took)}, at {pace:.2g} s a round", took
