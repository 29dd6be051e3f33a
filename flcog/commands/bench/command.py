"""The command ``flcog bench``: seconds per round of a config's run, as it is or varied, against a bare PyTorch loop."""

import copy
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jsonargparse.typing import NonNegativeFloat, PositiveInt
from lightning.pytorch.cli import instantiate_class
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from flcog.client.executor import Choice
from flcog.commands import cli
from flcog.commands.bench.bare import BareLoop, batches_of, wait_for_device
from flcog.core.files import write_yaml
from flcog.core.output import say
from flcog.core.text import first_line, human, markdown
from flcog.core.text import seconds as in_seconds
from flcog.method import check_methods
from flcog.run.directory import environment

SECONDS_BETWEEN_REPORTS = 5

STABLE = 0.05
"""The greatest uncertainty of the median of a ratio."""

CALLBACKS = "callbacks"
"""The name of the variation of single methods. Each one joins the config's own methods in a run of its own."""


def bench(
    trainer: Any,
    model: Any,
    datamodule: Any,
    repeats: PositiveInt = 5,
    seconds: NonNegativeFloat = 60.0,
    profile: str | None = None,
    vary: dict[str, list] | None = None,
    save: str | None = None,
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
        vary: lists of values of the trainer's settings, as in ``--vary.executor "[loop, vmap]"
            --vary.precision "[32-true, bf16-mixed]"``: all combinations are timed in turn, and a table compares them. Ratios are to the
            bare loop of the config as it is, and to the first combination. ``--vary.callbacks "[none, Quantize, ClipUpdate]"`` times single
            methods beside the config's own.
        save: a YAML file for the seconds of all rounds, with the commit, the versions, the device and the command, such as
            ``results/speed/lenet.yaml``.
    """
    first = time_rounds(trainer, model, datamodule, repeats, seconds, vary, save)
    if profile is not None:
        profile_round(first, profile)


class Rival(Protocol):
    """Another program that trains the same clients' rounds."""

    @property
    def name(self) -> str: ...

    def round(self, number: int, clients: list[int]) -> float:
        """Train a round of these clients and return its seconds."""


def time_rounds(
    trainer: Any,
    model: Any,
    datamodule: Any,
    repeats: int,
    seconds: float,
    vary: dict[str, list] | None = None,
    save: str | None = None,
    others: Callable[[BareLoop, list[int]], AbstractContextManager[Sequence[Rival]]] = lambda bare, clients: nullcontext(()),
) -> Any:
    """Time rounds in turn, and print a table. Returns the first trainer.

    ``others`` starts further rivals, in the first process only, after the bare loop's first round of these clients.
    """
    contestants = variations(trainer, vary or {})
    trainer.prepare(copy.deepcopy(model), datamodule)
    ready = time.perf_counter()
    processes, rounds = trainer.run.processes, list[list[float]]()
    rivals: list[Rival] = [BareLoop(trainer, *batches_of(trainer))] if processes.is_first else []
    with trainer.settings.in_force():
        for rival in rivals:
            say(f"first round of {rival.name}: {rival.round(0, trainer.sample(0)):.4f} s")
        with others(rivals[0], trainer.sample(0)) if rivals else nullcontext(()) as further:  # type: ignore[arg-type]
            contestants = warmed_up(contestants, model, datamodule)
            programs: list[Rival] = [*contestants, *rivals, *further]
            first = contestants[0].trainer
            began, reported, going_on = time.perf_counter(), -math.inf, True
            try:
                while going_on:
                    number = 1 + len(rounds)
                    rounds.append([program.round(number, first.sample(number)) for program in programs])
                    synchronise(first)
                    now = time.perf_counter()
                    enough = now - began >= seconds or settled(rounds, len(contestants))
                    going_on = processes.agree(number < repeats or not enough)
                    if processes.is_first and now - reported >= SECONDS_BETWEEN_REPORTS:
                        reported = now
                        told = (f"{program.name} {took:.4f} s" for program, took in zip(programs, rounds[-1], strict=True))
                        say(f"round {number} took {', '.join(told)}")
            finally:
                if processes.is_first and rounds:
                    names = [program.name for program in programs[len(contestants) :]]
                    print_table(contestants, names, rounds)
                    if save is not None:
                        names = [*(f"{each.name} ({each.ran_as})" for each in contestants), *names]
                        columns = [list(map(float, times)) for times in zip(*rounds, strict=True)]
                        about = environment(processes.accelerator) | {"processes": processes.count}
                        about |= {"threads": torch.get_num_threads()}
                        write_yaml(Path(save), about | {"seconds": dict(zip(names, columns, strict=True))})
    if processes.is_first and cli.began is not None:  # no script called this function
        print(f"start: the first round can begin {ready - cli.began:.1f} s after the command (imports, configuration, data)")
    return first


class Contestant:
    """A trainer whose rounds are timed."""

    def __init__(self, trainer: Any, values: Mapping[str, Any]) -> None:
        self.trainer, self.values = trainer, values
        self.first_round, self.memory = 0.0, 0

    def round(self, number: int, clients: list[int]) -> float:
        """Train the trainer's next round and return its seconds. The number of bytes that it took on a GPU is kept."""
        device, held = self.trainer.run.processes.device, 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            held = torch.cuda.memory_allocated(device)
        began = time.perf_counter()
        self.trainer.train_round()
        synchronise(self.trainer)
        took = time.perf_counter() - began
        if device.type == "cuda":
            self.memory = max(self.memory, torch.cuda.max_memory_allocated(device) - held)
        return took

    @property
    def name(self) -> str:
        """Its variations in words."""
        return ", ".join(f"{name} {as_yaml(value)}" for name, value in self.values.items()) or "flcog"

    @property
    def ran_as(self) -> str:
        """Its executor, which may differ from the requested one."""
        executor = self.trainer.run.engine.clients.executor
        return str(Choice(executor.name, executor.clients_at_once, executor.compiled))


def synchronise(trainer: Any) -> None:
    """Wait for the device and for the other processes."""
    wait_for_device(trainer.run.processes.device)
    trainer.fabric.barrier()


def variations(trainer: Any, vary: Mapping[str, Sequence[Any]]) -> list[Contestant]:
    """Make a trainer for each combination of values; without any, one of the config's own alone."""
    known = [CALLBACKS, *(field.name for field in dataclasses.fields(trainer.settings))]
    if unknown := next((name for name in vary if name not in known), None):
        raise ValueError(f"vary.{unknown}: the trainer has no such setting; choose among {', '.join(known)}")
    return [_varied(trainer, dict(zip(vary, values, strict=True))) for values in itertools.product(*vary.values())]


def _varied(trainer: Any, values: Mapping[str, Any]) -> Contestant:
    other, settings = copy.copy(trainer), {name: value for name, value in values.items() if name != CALLBACKS}
    other.settings = dataclasses.replace(trainer.settings, **settings)
    other.methods, added = copy.deepcopy(trainer.methods), values.get(CALLBACKS)
    if added not in (None, "none"):  # a name, or a class path and arguments as in configs
        path = added if isinstance(added, str) else ""
        given = {"class_path": path if "." in path else f"flcog.callbacks.{path}"} if path else added
        other.methods.append(instantiate_class((), given))
    check_methods(other.methods)
    return Contestant(other, values)


def warmed_up(contestants: Sequence[Contestant], model: Any, datamodule: Any) -> list[Contestant]:
    """Prepare and warm up the contestants.

    Prints why others are left out, for example because memory ran out.
    """
    ready, reasons = [], list[Exception]()
    for contestant in contestants:
        try:
            contestant.trainer.prepare(copy.deepcopy(model), datamodule)
            contestant.first_round = contestant.round(0, [])
            if contestant.trainer.run.processes.is_first:
                say(f"first round of {contestant.name}: {contestant.first_round:.4f} s")
        except Exception as error:
            if contestant.trainer.fabric.world_size > 1:  # the other processes may have succeeded
                raise
            reasons.append(error)
            print(f"{contestant.name} is left out: {first_line(error)}")
        else:
            ready.append(contestant)
    if not ready:
        raise reasons[0]
    return ready


def as_yaml(value: Any) -> str:
    """Format a value as in configs; a method with its arguments by its name and these."""
    if isinstance(value, dict):
        arguments = ", ".join(f"{name}={as_yaml(each)}" for name, each in value.get("init_args", {}).items())
        return f"{value['class_path'].rpartition('.')[2]}({arguments})"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def uncertainty(values: Sequence[float]) -> float:
    """Half of the median's confidence interval, relative to the median, by McGill, Tukey and Larsen, 1978.

    It is 1.57 times the distance of the quartiles, divided by the square root of the number of values.
    """
    if len(values) < 2:
        return math.inf
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(1.57 * (high - low) / middle / len(values) ** 0.5)


def ratios(rounds: Sequence[Sequence[float]], count: int) -> np.ndarray:
    """The ratios of our ``count`` times in every round to each rival's and, if we have several, to our first: (ours, others, rounds)."""
    times = np.array(rounds).T
    return times[:count, None] / np.concatenate([times[count:], times[: count > 1]])


def settled(rounds: Sequence[Sequence[float]], count: int) -> bool:
    """Whether the median of each ratio is known well enough. The first ``count`` times are ours."""
    return all(uncertainty(values) <= STABLE for each in ratios(rounds, count) for values in each)


def print_table(contestants: Sequence[Contestant], names: Sequence[str], rounds: Sequence[Sequence[float]]) -> None:
    """Print a table with a line for each combination of varied values, and for each rival."""
    trainer, count = contestants[0].trainer, len(contestants)
    medians, found = np.median(rounds, axis=0), ratios(rounds, count)
    others = [*(f"of {name}" for name in names), *["of the first"] * (count > 1)]
    rows = [
        {name: as_yaml(value) for name, value in (contestant.values or {"program": "flcog"}).items()}
        | {"ran as": contestant.ran_as, "a round": in_seconds(median)}
        | dict(zip(others, map(_ratio, own), strict=True))
        | {"first round": in_seconds(contestant.first_round)}
        | ({"memory": human(contestant.memory)} if trainer.run.processes.device.type == "cuda" else {})
        for contestant, median, own in zip(contestants, medians, found, strict=False)
    ]
    header = list(rows[0])
    rows += [{header[0]: name, "a round": in_seconds(median)} for name, median in zip(names, medians[count:], strict=True)]
    print(f"{trainer.run.processes.count} process(es), {torch.get_num_threads()} thread(s) each, {len(rounds)} rounds in turn")
    if trainer.methods:
        print(f"{' + '.join(type(method).__name__ for method in trainer.methods)}: in flcog's rounds alone")
    print(markdown(header, ([row.get(name, "") for name in header] for row in rows)))
    doubt = max(uncertainty(values) for each in found for values in each)
    if STABLE < doubt < math.inf:
        print(f"this machine is noisy: a ratio is known to {doubt:.0%} only; free it, or give more --seconds")


def _ratio(values: Sequence[float]) -> str:
    median, doubt = np.median(values), uncertainty(values)
    return f"{median:.3f} +- {doubt * median:.3f}" if doubt < math.inf else f"{median:.3f}"


def profile_round(trainer: Any, path: str) -> None:
    """Train one more round under torch's profiler. Every process trains it, the first one writes and prints."""
    is_first, on_gpu = trainer.run.processes.is_first, trainer.run.processes.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    # Without this, threads that run clients side by side would not be counted.
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    began = time.perf_counter()
    # With acc_events, torch does not warn of later cycles, of which there are none.
    profiled: Any = profile(activities=activities, experimental_config=everywhere, acc_events=True) if is_first else nullcontext()
    with profiled as profiler:
        trainer.train_round()
        synchronise(trainer)
    took = time.perf_counter() - began
    if profiler is not None:
        profiler.export_chrome_trace(path)
        print(profiler.key_averages().table(sort_by=f"self_{'cuda' if on_gpu else 'cpu'}_time_total", row_limit=12))
        print(f"one round took {in_seconds(took)} under the profiler; its trace is in {path}: open it in https://ui.perfetto.dev")
