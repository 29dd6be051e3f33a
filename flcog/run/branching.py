"""A run that branches from another: the rounds until then are the other's, what follows is as if it had trained them itself."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flcog.core.arguments import constructor_arguments
from flcog.core.files import RUN_REMEDY, clear_errors, make_folder
from flcog.core.processes import Processes
from flcog.core.types import Slot
from flcog.method import Method
from flcog.run import checkpoint, experiment
from flcog.run.directory import STATES
from flcog.run.metrics_rows import read_rows
from flcog.run.observers.checkpoint import state_of_branch
from flcog.settings import Settings

Histories = Mapping[str, Mapping[str, Any]]
"""By method: whether it ``waits``, that is has changed nothing so far, and the ``settings`` that counted."""


def check_branch_arguments(branch: str | None, round: int | None, ckpt_path: str | None) -> tuple[str, int]:
    """The run to branch from and after which round; refuses one without the other, and a checkpoint to go on from."""
    if branch is None or round is None:
        raise ValueError(f"branch and round belong together, the run and after which round; got branch={branch}, round={round}")
    if ckpt_path is not None:
        raise ValueError(
            f"a run branches from another or goes on from its own checkpoint: give branch={branch} or ckpt_path={ckpt_path}"
        )
    return branch, round


def methods_until(methods: Sequence[Method], round: int) -> dict[str, dict[str, Any]]:
    """What the methods have done when so many rounds are done, by name; without those that had no part in them."""
    found = {method.name: (method, method.until(round)) for method in methods}
    return {
        name: {"waits": until is not method, "settings": experiment.by_name(constructor_arguments(until))}
        for name, (method, until) in found.items()
        if until is not None
    }


def check_branch(
    path: Path, saved: dict[str, Any], settings: Settings, methods: Sequence[Method], present: Mapping[str, Any]
) -> None:
    """Refuse to branch from what a run with these settings and methods would not have been at that round.

    Args:
        path: where the checkpoint was read.
        saved: what was in it.
        settings, methods: of this run.
        present: what it is, as :func:`flcog.run.experiment.describe` says.
    """
    if "until" not in saved or not saved["resumable"] or not saved["experiment"]:
        raise ValueError(
            f"{path} does not say enough to branch from it: use a run's last.ckpt, or one that it kept by keep_rounds"
        )
    if saved["seed"] != settings.seed:
        raise ValueError(
            f"{path} was written by a run with seed {saved['seed']}; this one has {settings.seed}: use the same seed"
        )
    if saved["round"] >= settings.rounds:
        raise ValueError(
            f"{path} is of round {saved['round']}, and trainer.rounds={settings.rounds} leaves nothing to train: raise it"
        )
    _check_histories(path, saved["round"], saved["until"], methods_until(methods, saved["round"]))
    experiment.check_same(path, saved["experiment"], present)
    changes = experiment.differences(*(_without_methods(described) for described in (saved["experiment"], present)))
    if changes:
        raise ValueError(
            f"{path} was written with other settings: {'; '.join(changes)}. A branch changes methods only: put them back"
        )


def check_rows(trunk: Path, round: int, settings: Settings) -> None:
    """Refuse to branch where the other run's rows are not those that this one would have written."""
    table = trunk / "metrics.csv"
    rows = {row["round"]: row for row in read_rows(table)[0]} if table.is_file() else {}
    missing = next((number for number in range(1, round + 1) if number not in rows), None)
    if missing is not None:
        raise ValueError(f"{table} has no row of round {missing}: branch from a run that has all of them up to round {round}")
    if ("time/evaluation" in rows[round]) != settings.evaluates(round):
        raise ValueError(
            f"round {round} was the last of {trunk} and so was evaluated, which trainer.eval_every={settings.eval_every} would not do: "
            "branch from a checkpoint that a longer run kept, or after a round that is evaluated"
        )


def _check_histories(path: Path, round: int, theirs: Histories, ours: Histories) -> None:
    for name in ours:
        if name not in theirs and ours[name]["waits"]:
            raise ValueError(
                f"{path} lacks what {name} gathers from round 1 on: list {name} in that run too, with start_round: {round} or more"
            )
        if name not in theirs:
            raise ValueError(
                f"{name} would have acted before round {round + 1}, and not in {path}: set its start_round to {round}"
            )
        if ours[name] != theirs[name]:
            before, now = theirs[name]["settings"], ours[name]["settings"]
            changes = [
                f"{key} was {before.get(key)}, is {now.get(key)}" for key in {**before, **now} if before.get(key) != now.get(key)
            ]
            raise ValueError(f"{path} was written by a run with another {name}: {'; '.join(changes)}. Use the same until then")
    acting, ours_acting = ([name for name in part if not part[name]["waits"]] for part in (theirs, ours))
    if acting != ours_acting:
        raise ValueError(
            f"{path} was written by a run in which {', '.join(acting)} acted, in this order; here it is "
            f"{', '.join(ours_acting) or 'no method'}: list these too"
        )


def _without_methods(described: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in described["settings"].items() if name.startswith("trainer.")}
    return {**described, "settings": settings}


def take_over(
    saved: dict[str, Any],
    trunk: Path,
    methods: Sequence[Method],
    servers: Mapping[str, Slot],
    directory: Path,
    processes: Processes,
) -> dict[str, Any]:
    """Another run's checkpoint as the one that branches from it would have written it, with the files that belong to it.

    Args:
        saved: the checkpoint.
        trunk: the other run's directory.
        methods: of the run that branches.
        servers: its methods' states at the server before round 1.
        directory: of the run that branches.
        processes: of the run that branches; the first one copies.
    """
    kept, gone = methods_until(methods, saved["round"]), set(saved["methods"]) - {method.name for method in methods}
    best_came, files = processes.agree(
        (_copy_rows_and_best(saved, trunk, directory), _copy_states(saved, trunk, kept, directory))
        if processes.is_first
        else None
    )
    observers = saved["observers"]
    return {
        **saved,
        "methods": [method.name for method in methods],
        "servers": {name: saved["servers"][name] if name in kept else slot for name, slot in servers.items()},
        "reported": {name: clients for name, clients in saved["reported"].items() if name in kept},
        "messages": {name: sent for name, sent in saved.get("messages", {}).items() if name in kept},
        "ledger": {way: {k: v for k, v in sent.items() if k not in gone} for way, sent in saved["ledger"].items()},
        "clients": files,
        "observers": observers | {"Checkpoint": state_of_branch(observers.get("Checkpoint", {}), best_came)},
        "branch": {"run": str(trunk), "round": saved["round"], "methods": saved["methods"]},
        "tracker_run": None,
        "run_id": "",
    }


def _copy_rows_and_best(saved: dict[str, Any], trunk: Path, directory: Path) -> bool:
    """Copy the rows, and the best checkpoint if it is of these rounds and of this run; returns whether it is."""
    best = trunk / "checkpoints/best.ckpt"
    round = checkpoint.round_of(best)
    came = round is not None and round <= saved["round"]
    if came:
        content = checkpoint.read(best)
        checkpoint.check_same_model(best, content["params"] | content["buffers"], saved["params"] | saved["buffers"])
        if any(content.get(part) != saved.get(part) for part in ("seed", "methods", "experiment", "branch")):
            raise ValueError(f"{best} is of another run than last.ckpt beside it: remove it, or branch from another run")
    with clear_errors(directory, RUN_REMEDY):
        make_folder(directory / "checkpoints")
        shutil.copy(trunk / "metrics.csv", directory)
        if came:
            shutil.copy(best, directory / "checkpoints")
    return came


def _copy_states(saved: dict[str, Any], trunk: Path, methods: Collection[str], directory: Path) -> dict[int, str]:
    """Copy what these methods keep of each client; returns the file that holds it."""
    files: dict[int, str] = {}
    for name in sorted(set(saved["clients"].values())) if methods else ():
        clients = [client for client, file in saved["clients"].items() if file == name]
        stored = checkpoint.read_states(trunk / STATES / name, clients, tested=False)
        wanted = {client: {method: slot for method, slot in stored[client].items() if method in methods} for client in clients}
        wanted = {client: slots for client, slots in wanted.items() if slots}
        if wanted:
            checkpoint.write(directory / STATES / name, {"format": checkpoint.FORMAT, "clients": wanted})
            files |= dict.fromkeys(wanted, name)
    return files
