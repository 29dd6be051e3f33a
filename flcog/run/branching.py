"""Starts a run from a round of another run. The result equals that of a run from round 1."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flcog.core.files import RUN_REMEDY, clear_errors, make_folder
from flcog.core.lightning_packages import PACKAGES
from flcog.core.processes import Processes
from flcog.core.types import Slot
from flcog.method import Callback, Method, PrivateSum, methods_until
from flcog.method.method import BEFORE_ITS_START
from flcog.run import checkpoint, experiment
from flcog.run.directory import STATES
from flcog.run.lightning_callbacks import LightningCallbacks
from flcog.run.metrics_rows import read_rows
from flcog.run.observers.checkpoint import state_of_branch
from flcog.run.users_code import changed_classes
from flcog.settings import Settings

Histories = Mapping[str, Mapping[str, Any]]
"""For each method: whether it ``waits``, so that it has changed nothing so far, and its effective ``settings``."""


def check_branch(
    path: Path, saved: dict[str, Any], settings: Settings, methods: Sequence[Method], present: Mapping[str, Any]
) -> None:
    """Refuse a checkpoint that a run with these settings and methods would not have written.

    Args:
        path: the checkpoint.
        saved: its contents.
        settings, methods: this run's.
        present: this run's description by :func:`flcog.run.experiment.describe`.
    """
    if not saved["resumable"]:
        raise ValueError(
            f"{path} lacks the information for a branch: use a run's last.ckpt, or a checkpoint kept with keep_rounds"
        )
    if saved["seed"] != settings.seed:
        raise ValueError(
            f"{path} was written by a run with seed {saved['seed']}; this one has {settings.seed}: use the same seed"
        )
    if saved["round"] >= settings.rounds:
        raise ValueError(
            f"{path} is of round {saved['round']}, and trainer.rounds={settings.rounds} leaves no round to train: raise it"
        )
    _check_histories(path, saved["round"], saved["until"], methods)
    check_best(path.with_name("best.ckpt"), saved)
    experiment.check_same(path, saved["experiment"], present)
    changes = experiment.differences(*(_without_methods(described) for described in (saved["experiment"], present)))
    if changes:
        raise ValueError(
            f"{path} was written with other settings: {'; '.join(changes)}. A branch changes methods only: put them back"
        )
    acted = {name: digests for name, digests in present["code"].items() if name in {"model", "data", *saved["until"]}}
    if changed := changed_classes(saved["experiment"].get("code", {}), acted):
        raise ValueError(
            f"{path} was written with other code of {', '.join(changed)}: train these rounds again without --branch, and with --no-trunks "
            "in flcog compare"
        )


def check_rounds(path: Path, saved: dict[str, Any], rounds: int, parts: Sequence[Any]) -> None:
    """Refuse another ``trainer.rounds`` if the shared rounds may depend on it.

    Args:
        path: the checkpoint.
        saved: its contents.
        rounds: this run's number.
        parts: this run's methods, observers, module and data module.
    """
    callbacks = [callback for part in parts if isinstance(part, LightningCallbacks) for callback in part.callbacks]
    for other in saved.get("rounds", ()):  # earlier checkpoints do not tell
        part = next((part for part in [*parts, *callbacks] if other != rounds and _may_depend_on(part, other, rounds)), None)
        if part is not None:
            raise ValueError(
                f"{path} was written by a run with trainer.rounds={other}, this one has {rounds}, and {type(part).__name__} may depend on "
                f"this number from round 1 on: branch from a run with trainer.rounds={rounds}, which StopAfter can end early"
            )


def _may_depend_on(part: Any, *rounds: int) -> bool:
    """Whether a part may act differently until the branch with these numbers of rounds.

    A private sum may choose its noise by the number. A method exchanges no data if it would start after the last round. A user's own
    module, data module or callback for Lightning may read the number, as for a schedule of learning rates. Observers change no results.
    """
    if isinstance(part, Method):
        exchanges = part.overrides("prepare_data") and min(rounds) <= part.start_round < max(rounds)
        return exchanges or isinstance(part, PrivateSum)
    return not isinstance(part, Callback) and type(part).__module__.partition(".")[0] not in ("flcog", "torch", *PACKAGES)


def check_rows(trunk: Path, round: int, settings: Settings) -> None:
    """Refuse to branch if the other run's rows differ from the rows that this run would have written."""
    table = trunk / "metrics.csv"
    rows = {row["round"]: row for row in read_rows(table)[0]} if table.is_file() else {}
    missing = next((number for number in range(1, round + 1) if number not in rows), None)
    if missing is not None:
        raise ValueError(f"{table} has no row of round {missing}: branch from a run that has all of them up to round {round}")
    # Private runs withhold the time. A row without scores is the same with and without an evaluation.
    if any(name.startswith(("val/", "test/")) for name in rows[round]) and not settings.evaluates(round):
        raise ValueError(
            f"round {round} was evaluated as the last of {trunk}, and trainer.eval_every={settings.eval_every} would not "
            "evaluate it: branch from a checkpoint that a longer run kept, or after a round that is evaluated"
        )


def _check_histories(path: Path, round: int, theirs: Histories, methods: Sequence[Method]) -> None:
    ours, always = methods_until(methods, round), {method.name: _from_round_1(method) for method in methods}
    for name in ours:
        if name not in theirs and not ours[name]["waits"] and always[name]:
            raise ValueError(
                f"{name} {always[name]}, even before its start_round, and the run that wrote {path} had no {name}: list it in that "
                "run too, with the same settings"
            )
        if name not in theirs and ours[name]["waits"]:
            raise ValueError(
                f"{path} lacks the client states that {name} collects from round 1 on: list {name} in that run too, with "
                f"start_round: {round} or more"
            )
        if name not in theirs:
            raise ValueError(
                f"{name} would act before round {round + 1}, but did not act in the run of {path}: set its start_round to {round}"
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


def _from_round_1(method: Method) -> str | None:
    """Describe the effect that a method has before its ``start_round``."""
    return next((does for hook, does in BEFORE_ITS_START.items() if method.overrides(hook)), None)


def check_best(best: Path, saved: dict[str, Any]) -> None:
    """Refuse to branch if the best checkpoint, which is copied, is damaged or was written by another run."""
    if not best.is_file():
        return
    content = checkpoint.read(best)
    checkpoint.check_same_model(best, content["params"] | content["buffers"], saved["params"] | saved["buffers"])
    branch = saved["branch"]
    # A best checkpoint of the rounds before the branch was copied from the run that wrote it.
    copied = branch is not None and content["round"] <= branch["round"]
    known = ("seed",) if copied else ("seed", "methods", "branch")
    if any(content[part] != saved[part] for part in known) or not (copied or _same(content, saved)):
        raise ValueError(
            f"{best} was written by another run than the checkpoints beside it: remove it, or branch from another run"
        )


def _same(content: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    """Whether two checkpoints are of one experiment. Code may have changed between them, when the run was resumed."""
    return {**content["experiment"], "code": {}} == {**saved["experiment"], "code": {}}


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
    """Change another run's checkpoint into this run's, and copy its files.

    Args:
        saved: the checkpoint.
        trunk: the other run's directory.
        methods: this run's.
        servers: the server's states of this run's methods before round 1.
        directory: this run's.
        processes: this run's. The first process copies.
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
        "reported": {name: clients for name, clients in saved["reported"].items() if name in {"model", *kept}},
        "messages": {name: sent for name, sent in saved.get("messages", {}).items() if name in kept},
        "ledger": {way: {k: v for k, v in sent.items() if k not in gone} for way, sent in saved["ledger"].items()},
        "clients": files,
        "observers": observers | {"Checkpoint": state_of_branch(observers.get("Checkpoint", {}), best_came)},
        "branch": {"run": str(trunk), "round": saved["round"], "methods": saved["methods"]},
        "tracker_run": None,
        "run_id": "",
    }


def _copy_rows_and_best(saved: dict[str, Any], trunk: Path, directory: Path) -> bool:
    """Copy the rows, and the best checkpoint if it is from these rounds. Returns whether it is."""
    best = trunk / "checkpoints/best.ckpt"
    round = checkpoint.round_of(best)
    came = round is not None and round <= saved["round"]
    with clear_errors(directory, RUN_REMEDY):
        make_folder(directory / "checkpoints")
        shutil.copy(trunk / "metrics.csv", directory)
        if came:
            shutil.copy(best, directory / "checkpoints")
    return came


def _copy_states(saved: dict[str, Any], trunk: Path, methods: Collection[str], directory: Path) -> dict[int, str]:
    """Copy the clients' states of these methods. Returns each client's file."""
    files: dict[int, str] = {}
    for name in sorted(set(saved["clients"].values())) if methods else ():
        clients = [client for client, file in saved["clients"].items() if file == name]
        stored = checkpoint.read_states(trunk / STATES / name, clients, tested=False)
        wanted = {client: {method: slot for method, slot in stored[client].items() if method in methods} for client in clients}
        wanted = {client: states for client, states in wanted.items() if states}
        if wanted:
            checkpoint.write(directory / STATES / name, {"format": checkpoint.FORMAT, "clients": wanted})
            files |= dict.fromkeys(wanted, name)
    return files
