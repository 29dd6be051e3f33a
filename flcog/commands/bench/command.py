"""The command ``flcog bench``: seconds per round of a config's run, against a bare PyTorch loop and other frameworks."""

import copy
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from flcog.commands import cli
from flcog.commands.bench.against import BATCHED, Contender, apart, interpreters, job_of, left_out, started
from flcog.commands.bench.bare import BareLoop, OneModel, batches_of
from flcog.commands.bench.contenders.job import save
from flcog.commands.bench.profile import check_trace, profile_round
from flcog.commands.bench.program import program_of
from flcog.commands.bench.reading import bench_reading
from flcog.commands.bench.results import print_ratios, print_table, settled
from flcog.commands.bench.variations import Contestant, variations, warmed_up
from flcog.commands.bench.waiting import synchronise
from flcog.core.checks import at_least
from flcog.core.output import say


def bench(
    trainer: Any,
    model: Any,
    datamodule: Any,
    repeats: int = 5,
    seconds: float = 60.0,
    profile: str | None = None,
    against: str | None = None,
    vary: dict[str, Any] | None = None,
) -> None:
    """Time the config's rounds against a bare PyTorch loop of the same SGD steps, and against other frameworks.

    Only training is compared, without evaluation, trackers and checkpoints. The bare loop is written by hand: a deep copy of the
    model and a new optimiser for each client, its batches gathered once and sliced, contiguous tensors, a sum of state dicts. It
    runs on every core of the machine, in one process. Both sides keep freed memory for reuse.

    All run in turn until the median of each ratio is known to 5 %, or until the time is up. Times are printed on the error stream
    as they arrive, and Ctrl-C ends with the ratios measured so far.

    The line "start" is the time from the command to the first round, with the start of all processes.

    Images are also read for an epoch as the engine reads them, and by a ``DataLoader`` over torchvision's transforms.

    Args:
        repeats: the minimum number of rounds.
        seconds: the time after which no further round begins.
        profile: a file for a trace of one more round, as torch's profiler writes it; a table of where its time goes is printed.
        against: other frameworks that train the same clients, batches, model and optimiser in turn: pfl (Apple's pfl-research, in as
            many processes as flcog), flower (its simulation on Ray, an actor for each core), or both as pfl,flower. Give
            pfl=/path/to/python if it is installed for another Python. As in the bare loop, there are no methods, augmentation or
            schedules. A framework that is not installed is left out, with the command that installs it. batched trains one model on as
            many samples in batches of 512, at the device's maximum speed.
        vary: lists of values of the trainer's executor, chunk_size, compile, precision or tf32, as in ``--vary.executor "[loop, vmap]"
            --vary.precision "[32-true, bf16-mixed]"``: all combinations are timed in turn, and a table compares them. Ratios are to the
            bare loop of the config as it is, and to the first combination. ``--vary.callbacks "[none, Quantize, ClipUpdate]"`` times single
            methods beside the config's own.
    """
    at_least(None, 1, repeats=repeats)
    at_least(None, 0, seconds=seconds)
    if profile is not None:
        check_trace(profile)
    wanted = {} if against is None else interpreters(against)
    contestants = [Contestant(trainer)] if vary is None else variations(trainer, vary)
    trainer.prepare(model if vary is None else copy.deepcopy(model), datamodule)
    ready = time.perf_counter()
    processes = trainer.run.processes
    with trainer.settings.in_force(), _rivals(trainer, wanted) as rivals:
        if vary is None:
            contestants[0].warm_up()
        else:
            contestants = warmed_up(contestants, model, datamodule)
        rounds: list[list[float]] = []
        try:
            for times in _rounds_in_turn(contestants, rivals, repeats, seconds):
                rounds.append(times)
        finally:
            if processes.is_first and rounds:
                names = [rival.name for rival in rivals]
                print_ratios(trainer, names, rounds) if vary is None else print_table(contestants, names, rounds)
    if processes.is_first:
        if cli.began is not None:  # no script called this function
            start = ready - cli.began
            print(f"start: the first round can begin {start:.1f} s after the command (imports, configuration, data)")
        bench_reading(trainer, repeats)
    if profile is not None:
        profile_round(contestants[0].trainer, profile)


@contextmanager
def _rivals(trainer: Any, wanted: Mapping[str, str]) -> Iterator[list[BareLoop | Contender]]:
    """Start and warm up the bare loop and the wanted frameworks, each with its Python interpreter, in the first process only."""
    with ExitStack() as stack:
        rivals: list[BareLoop | Contender] = []
        if trainer.run.processes.is_first:
            batches, structure = batches_of(trainer)
            bare, clients = BareLoop(trainer, batches, structure), trainer.sample(0)
            rivals.append(bare)
            if BATCHED in wanted:
                rivals.append(OneModel(trainer, batches, structure))
            frameworks = {name: python for name, python in wanted.items() if name != BATCHED}
            if frameworks:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flcog-bench-", ignore_cleanup_errors=True)))
                job, before = job_of(trainer, batches), _parameters(bare)
                save(folder, job, program_of(bare.server, next(batches.of(0, clients[0])), structure))
            for rival in rivals:
                say(f"first round of {rival.name}: {rival.round(0, clients):.4f} s")
            for name, python in frameworks.items():
                contender = stack.enter_context(started(name, python, folder, job))
                answer = contender.heard()
                if "missing" in answer:
                    print(left_out(name, python, answer["missing"]))
                    continue
                contender.round(0, clients, keep=folder / "model.pt")
                print(f"{name}: {answer['ready']}; {_compared(folder / 'model.pt', bare, before)}")
                rivals.append(contender)
        yield rivals


def _parameters(bare: BareLoop) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in bare.server.named_parameters() if value.requires_grad}


def _compared(kept: Path, bare: BareLoop, before: dict[str, torch.Tensor]) -> str:
    """Say whether the model that a contender kept is the bare loop's after the same round. ``before`` it, both had these parameters."""
    state = {name.removeprefix("module."): value for name, value in torch.load(kept, map_location="cpu").items()}
    distance = apart(state, _parameters(bare), before)
    if distance <= SAME_MODEL:
        return f"a round ends at the bare loop's model ({distance:.0e} of the way apart)"
    return f"a round ends elsewhere than the bare loop's ({distance:.0e} of the way apart): the network draws random numbers, or is chaotic"


SAME_MODEL = 0.01
"""The greatest distance of two models after a round that rounding errors explain, relative to their update."""


def _rounds_in_turn(
    contestants: Sequence[Contestant], rivals: Sequence[BareLoop | Contender], repeats: int, seconds: float
) -> Iterator[list[float]]:
    """Time rounds until the ratios are known well enough or the time is up, and report the times now and then."""
    processes, rounds, going_on = contestants[0].trainer.run.processes, list[list[float]](), True
    began, reported = time.perf_counter(), -math.inf
    while going_on:
        rounds.append(_time_round(contestants, rivals, 1 + len(rounds)))
        yield rounds[-1]
        now = time.perf_counter()
        going_on = processes.agree(len(rounds) < repeats or not (now - began >= seconds or settled(rounds, len(contestants))))
        if processes.is_first and now - reported >= SECONDS_BETWEEN_REPORTS:
            reported = now
            names = [*(contestant.name for contestant in contestants), *(rival.name for rival in rivals)]
            times = ", ".join(f"{name} {took:.4f} s" for name, took in zip(names, rounds[-1], strict=True))
            say(f"round {len(rounds)} took {times}")


SECONDS_BETWEEN_REPORTS = 5


def _time_round(contestants: Sequence[Contestant], rivals: Sequence[BareLoop | Contender], repeat: int) -> list[float]:
    """The seconds of one round of each of our trainers and of each rival."""
    trainer = contestants[0].trainer
    times = [contestant.round() for contestant in contestants]
    times += [rival.round(repeat, trainer.sample(repeat)) for rival in rivals]
    synchronise(trainer)
    return times
