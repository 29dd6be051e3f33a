"""The command ``flcog replay``: one client's local update of one round again, step by step, from a run's directory."""

from pathlib import Path
from typing import Any

import torch

from flcog.client.runtime import ClientRuntime
from flcog.commands.of_a_run import open_run
from flcog.core.commands import parser_of
from flcog.core.files import short
from flcog.execute.loop import LoopExecutor
from flcog.run import checkpoint
from flcog.server import round as rounds
from flcog.trainer import FederatedTrainer


def replay(arguments: list[str]) -> None:
    """Run one client's local update of one round again, alone."""
    parser = parser_of("replay", replay)
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--round", type=int, required=True, help="the round, counted from 1")
    parser.add_argument("--client", type=int, required=True, help="the client's number")
    options = parser.parse_args(arguments)
    cli = open_run(Path(options.run), "--trainer.executor", "loop")
    replay_client(cli.trainer, cli.model, cli.datamodule, Path(options.run), options.round - 1, options.client)


def replay_client(trainer: FederatedTrainer, model: Any, datamodule: Any, run: Path, round: int, client: int) -> None:
    """Run one client's local update of one round again, on the loop executor.

    Starts from the latest checkpoint before that round; what lies between is run again, which gives the same numbers.

    Args:
        trainer, model, datamodule: as the run had them.
        run: the run's directory.
        round: the round, counted from 0.
        client: its number.
    """
    checkpoints = [(checkpoint.read(path)["round"], path) for path in (run / "checkpoints").glob("*.ckpt") if path.stem != "best"]
    done = max((done for done, _ in checkpoints), default=0)
    last = min(done + 1, trainer.settings.rounds)  # the one in which it was stopped, or died, can be looked at too
    if not 0 <= round < last:
        raise ValueError(f"the run has done {done} rounds: --round must lie in 1 to {last}; got {round + 1}")
    start, path = max(((done, path) for done, path in checkpoints if done <= round), default=(0, None))
    trainer.prepare(model, datamodule, None if path is None else str(path))
    sampled = trainer.sample(round)
    if client not in sampled:
        raise ValueError(f"client {client} was not in round {round + 1}, whose cohort was {sampled}")
    print(
        f"replaying client {client} in round {round + 1} of {short(run)}" + (", which was not finished" if round == done else "")
    )
    print(_way_there(start, round, path))
    while trainer.run.round < round:
        trainer.train_round()
    with trainer.settings.in_force():
        _train(trainer, sampled, client)


def _way_there(start: int, round: int, path: Path | None) -> str:
    """Where the replay begins, and which rounds come before the one that is wanted."""
    origin = (
        "the initial model, for no checkpoint is earlier" if path is None else f"the model after round {start}, {short(path)}"
    )
    between = {0: "", 1: f"; round {round} is run again first"}
    return f"from {origin}" + between.get(round - start, f"; rounds {start + 1} to {round} are run again first")


def _train(trainer: FederatedTrainer, sampled: list[int], client: int) -> None:
    engine, server = trainer.run.engine, trainer.run.server
    round = rounds.plan(engine, server, sampled)
    if client not in round.plans:
        raise ValueError(f"client {client} dropped out of round {server.round + 1} before it trained")
    received, tasks = rounds.ask(engine, server, round)
    assert isinstance(engine.clients, ClientRuntime)
    assignment = engine.clients.assign(received, [task for task in tasks if task.client == client])
    work = assignment.works[0]
    print(
        f"round {server.round + 1}, client {client}: {work.num_samples} samples, {work.num_steps} steps, weight {work.weight:.4g}"
    )
    assignment = assignment._replace(watch=lambda step, loss: print(f"  step {step + 1:>4}  task loss {loss:.6g}"))
    result = next(LoopExecutor(engine.model, engine.optimizer).run(assignment))
    for name, value in result.envelope.delta.items():
        bad = int((~torch.isfinite(value)).sum())
        print(f"  delta {name:<32} norm {float(value.norm()):.6g}" + (f"  {bad} values are not finite" if bad else ""))
