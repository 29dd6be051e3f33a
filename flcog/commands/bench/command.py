"""The command ``flcog bench``: seconds per round of a config's run, against a bare PyTorch loop."""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from flcog.commands import cli
from flcog.commands.bench.bare import BareLoop, batches_of
from flcog.commands.bench.results import print_table, settled
from flcog.commands.bench.variations import Contestant, synchronise, variations, warmed_up
from flcog.core.checks import at_least
from flcog.core.output import say
from flcog.core.text import seconds as in_seconds


def bench(
    trainer: Any,
    model: Any,
    datamodule: Any,
    repeats: int = 5,
    seconds: float = 60.0,
    profile: str | None = None,
    vary: dict[str, Any] | None = None,
) -> None:
    """Time the config's rounds against a bare PyTorch loop of the same SGD steps.

    Only training is compared, without evaluation, trackers and checkpoints. The bare loop is written by hand: a deep copy of the
    model and a new optimiser for each client, its batches gathered once and sliced, contiguous tensors, a sum of state dicts. It
    runs on every core of the machine, in one process.

    All run in turn until the median of each ratio is known to 5 %, or until the time is up. Times are printed on the error stream
    as they arrive, and Ctrl-C ends with the ratios measured so far.

    The line "start" is the time from the command to the first round, with the start of all processes.

    Args:
        repeats: the minimum number of rounds.
        seconds: the time after which no further round begins.
        profile: a file for a trace of one more round, as torch's profiler writes it; a table of where its time goes is printed.
        vary: lists of values of the trainer's executor, chunk_size, compile, precision or tf32, as in ``--vary.executor "[loop, vmap]"
            --vary.precision "[32-true, bf16-mixed]"``: all combinations are timed in turn, and a table compares them. Ratios are to the
            bare loop of the config as it is, and to the first combination. ``--vary.callbacks "[none, Quantize, ClipUpdate]"`` times single
            methods beside the config's own.
    """
    first = time_rounds(trainer, model, datamodule, repeats, seconds, vary)
    if profile is not None:
        profile_round(first, profile)


class Rival(Protocol):
    """Another program that trains the same clients' rounds."""

    name: str

    def round(self, number: int, clients: list[int]) -> float:
        """Train a round of these clients and return its seconds."""


def time_rounds(
    trainer: Any,
    model: Any,
    datamodule: Any,
    repeats: int,
    seconds: float,
    vary: dict[str, Any] | None = None,
    others: Callable[[BareLoop, list[int]], AbstractContextManager[Sequence[Rival]]] = lambda bare, clients: nullcontext(()),
) -> Any:
    """Time rounds in turn, and print a table. Returns the first trainer.

    ``others`` starts further rivals, in the first process only, after the bare loop's first round of these clients.
    """
    at_least(None, 1, repeats=repeats)
    at_least(None, 0, seconds=seconds)
    contestants = variations(trainer, vary)
    trainer.prepare(copy.deepcopy(model), datamodule)
    ready = time.perf_counter()
    processes, rounds = trainer.run.processes, list[list[float]]()
    rivals: list[Rival] = [BareLoop(trainer, *batches_of(trainer))] if processes.is_first else []
    with trainer.settings.in_force():
        for rival in rivals:
            say(f"first round of {rival.name}: {rival.round(0, trainer.sample(0)):.4f} s")
        with others(rivals[0], trainer.sample(0)) if rivals else nullcontext(()) as further:  # type: ignore[arg-type]
            rivals += further
            contestants = warmed_up(contestants, model, datamodule)
            try:
                for times in _in_turn(contestants, rivals, repeats, seconds):
                    rounds.append(times)
            finally:
                if processes.is_first and rounds:
                    print_table(contestants, [rival.name for rival in rivals], rounds)
    if processes.is_first and cli.began is not None:  # no script called this function
        print(f"start: the first round can begin {ready - cli.began:.1f} s after the command (imports, configuration, data)")
    return contestants[0].trainer


def _in_turn(contestants: Sequence[Contestant], rivals: Sequence[Rival], repeats: int, seconds: float) -> Iterator[list[float]]:
    """Time rounds until the ratios are known well enough or the time is up, and report the times now and then."""
    trainer, rounds, going_on = contestants[0].trainer, list[list[float]](), True
    began, reported = time.perf_counter(), -math.inf
    while going_on:
        times = [contestant.round() for contestant in contestants]
        times += [rival.round(1 + len(rounds), trainer.sample(1 + len(rounds))) for rival in rivals]
        synchronise(trainer)
        rounds.append(times)
        yield times
        now = time.perf_counter()
        enough = now - began >= seconds or settled(rounds, len(contestants))
        going_on = trainer.run.processes.agree(len(rounds) < repeats or not enough)
        if trainer.run.processes.is_first and now - reported >= SECONDS_BETWEEN_REPORTS:
            reported = now
            names = [*(contestant.name for contestant in contestants), *(rival.name for rival in rivals)]
            told = (f"{name} {took:.4f} s" for name, took in zip(names, times, strict=True))
            say(f"round {len(rounds)} took {', '.join(told)}")


SECONDS_BETWEEN_REPORTS = 5


def profile_round(trainer: Any, path: str) -> None:
    """Train one more round under torch's profiler. Every process trains it, the first one writes and prints."""
    is_first, on_gpu = trainer.run.processes.is_first, trainer.run.processes.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    # Without this, threads that run clients side by side would not be counted.
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    began = time.perf_counter()
    # With acc_events, torch does not warn of later cycles, of which there are none.
    with (
        profile(activities=activities, experimental_config=everywhere, acc_events=True) if is_first else nullcontext() as profiler
    ):
        trainer.train_round()
        synchronise(trainer)
    took = time.perf_counter() - began
    if profiler is not None:
        profiler.export_chrome_trace(path)
        print(profiler.key_averages().table(sort_by=f"self_{'cuda' if on_gpu else 'cpu'}_time_total", row_limit=12))
        print(f"one round took {in_seconds(took)} under the profiler; its trace is in {path}: open it in https://ui.perfetto.dev")
