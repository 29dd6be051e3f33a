"""The command ``flcog replay``: repeats one client's local update of one round, step by step, from a run's directory."""

from pathlib import Path
from typing import Any

import torch

from flcog.client.runtime import ClientRuntime
from flcog.commands.import_from import IMPORT_FROM
from flcog.commands.of_a_run import open_run
from flcog.core.commands import parser_of
from flcog.core.files import short
from flcog.core.lightning_packages import lightning_base, users_hooks
from flcog.method import asynchronous_of, selection_of
from flcog.run import checkpoint
from flcog.run.earlier_settings import changed_settings
from flcog.run.initial_weights import load_initial_weights
from flcog.run.record import read_record
from flcog.server import round as rounds
from flcog.trainer import FederatedTrainer

OF_A_ROUND = ("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_epoch_end")
"""Hooks of Lightning's that ``fit`` calls around rounds."""


def replay(arguments: list[str]) -> None:
    """Repeat one client's local update of one round."""
    parser = parser_of("replay", replay)
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--round", type=int, required=True, help="the round, counted from 1")
    parser.add_argument("--client", type=int, required=True, help="the client's number")
    parser.add_argument("--import-from", type=Path, metavar="FOLDER", help=IMPORT_FROM)
    options = parser.parse_args(arguments)
    cli = open_run(Path(options.run), options.import_from, "--trainer.executor", "loop")
    replay_client(cli.trainer, cli.model, cli.datamodule, Path(options.run), options.round - 1, options.client)


def replay_client(trainer: FederatedTrainer, model: Any, datamodule: Any, run: Path, round: int, client: int) -> None:
    """Repeat one client's local update of one round on the loop executor.

    Starts from the latest checkpoint before that round, and trains the rounds in between again, which gives the same numbers.

    Args:
        trainer, model, datamodule: the run's own.
        run: the run's directory.
        round: the round, counted from 0.
        client: the client's number.
    """
    checkpoints = [(checkpoint.read(path)["round"], path) for path in (run / "checkpoints").glob("*.ckpt") if path.stem != "best"]
    done = max((done for done, _ in checkpoints), default=0)
    last = min(done + 1, trainer.settings.rounds)  # the last, unfinished round can be replayed too
    if not 0 <= round < last:
        raise ValueError(f"the run has done {done} rounds: --round must be between 1 and {last}; got {round + 1}")
    start, path = max(((done, path) for done, path in checkpoints if done <= round), default=(0, None))
    if path is None:
        _check_same_settings(run, round, trainer)
        _load_initial_weights(run, model)
    trainer.prepare(model, datamodule, None if path is None else str(path))
    asynchronous = asynchronous_of(trainer.methods) is not None  # clients arrive in later rounds than they are selected in
    if selection_of(trainer.methods) is None and not asynchronous:
        _check_selected(trainer, round, client)
    print(
        f"replaying client {client} in round {round + 1} of {short(run)}" + (", which was not finished" if round == done else "")
    )
    print(_way_there(start, round, path))
    if hooks := _uncalled(trainer):
        print(f"{', '.join(hooks)}: a replay does not call these. If they change the training, its steps are not the run's")
    while trainer.run.round < round:
        _train_again(trainer)
    if not asynchronous:
        _check_selected(trainer, round, client)
    with trainer.settings.in_force():
        _train(trainer, client)


def _check_same_settings(run: Path, round: int, trainer: FederatedTrainer) -> None:
    """Refuse a replay from the initial model if round 1 had other settings than ``config.yaml``."""
    if changes := changed_settings(run, trainer.methods):
        raise ValueError(
            f"{short(run)} was resumed with other settings ({'; '.join(changes)}), and round {round + 1} has no checkpoint to start from: "
            f"for a round before the change, run flcog fit -c {short(run)}/config-1.yaml and replay it there; for later ones, keep "
            "checkpoints in the next run with Checkpoint(keep_every_n_rounds=1)"
        )


def _load_initial_weights(run: Path, model: Any) -> None:
    """Load the weights with which the run began, if they came from a file."""
    origin = read_record(run).get("init_from")
    if origin and load_initial_weights(model, origin["file"])["weights"] != origin["weights"]:
        raise ValueError(f"{origin['file']} has other weights than when {short(run)} began with them: restore the file")


def _check_selected(trainer: FederatedTrainer, round: int, client: int) -> None:
    sampled = trainer.sample(round)
    if client not in sampled:
        raise ValueError(f"client {client} was not in round {round + 1}: --client must be one of {sampled}")


def _way_there(start: int, round: int, path: Path | None) -> str:
    """Describe the replay's first checkpoint, and the rounds that it trains before the requested round."""
    origin = (
        f"the model after round {start}, {short(path)}" if path else "the initial model, because there is no earlier checkpoint"
    )
    between = {0: "", 1: f"; round {round} is run again first"}
    return f"from {origin}" + between.get(round - start, f"; rounds {start + 1} to {round} are run again first")


def _uncalled(trainer: FederatedTrainer) -> list[str]:
    """The user's hooks at the start and end of a round, which may change what clients train."""
    module = trainer.run.model.module
    owners = [*([module] if lightning_base(module, "LightningModule") else []), *trainer.callbacks]
    return [f"{type(owner).__name__}.{hook}" for owner in owners for hook in users_hooks(owner, OF_A_ROUND)]


def _train_again(trainer: FederatedTrainer) -> None:
    """Train a round before the requested one, and evaluate it if a scheduler follows its figures."""
    figures, run = trainer.train_round(), trainer.run
    schedules, evaluated = run.engine.schedules, run.settings.evaluates(run.round)
    if schedules.follows:
        figures |= trainer.evaluate() if evaluated else {}
        schedules.follow(figures, run.model.log.names.named(figures), evaluated)


def _train(trainer: FederatedTrainer, client: int) -> None:
    engine, server = trainer.run.engine, trainer.run.server
    round = rounds.plan(engine, server, rounds.select(engine, server))
    if client not in round.plans:
        raise ValueError(f"client {client} did not train in round {server.round + 1}: choose one of {list(round.plans)}")
    assert isinstance(engine.clients, ClientRuntime)
    received, task = next(
        (received, task) for received, tasks in rounds.ask(server, round) for task in tasks if task.client == client
    )
    assignment = engine.clients.assign(received, [task])
    work = assignment.works[0]
    print(
        f"round {server.round + 1}, client {client}: {work.num_samples} samples, {work.num_steps} steps, weight {work.weight:.4g}"
    )
    assignment = assignment._replace(watch=lambda step, loss: print(f"  step {step + 1:>4}  task loss {loss:.6g}"))
    result = next(engine.clients.loop.run(assignment))
    for name, value in result.envelope.delta.items():
        bad = int((~torch.isfinite(value)).sum())
        print(f"  delta {name:<32} norm {float(value.norm()):.6g}" + (f"  {bad} values are not finite" if bad else ""))
