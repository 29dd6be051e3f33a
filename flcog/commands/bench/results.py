"""Prints the times of ``flcog bench``: ratios with their uncertainty, in lines or as a table."""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flcog.commands.bench.variations import Contestant, as_yaml
from flcog.core.text import human, markdown, seconds

STABLE = 0.05
"""The greatest uncertainty of the median of a ratio."""


def uncertainty(values: Sequence[float]) -> float:
    """Half of the median's confidence interval, relative to the median, by McGill, Tukey and Larsen, 1978.

    It is 1.57 times the distance of the quartiles, divided by the square root of the number of values.
    """
    if len(values) < 2:
        return math.inf
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(1.57 * (high - low) / middle / len(values) ** 0.5)


def _ratios(rounds: Sequence[Sequence[float]], ours: int = 0, count: int = 1) -> list[list[float]]:
    """Return the ratios of one of our times to each rival's in every round, by rival. The first ``count`` times of a round are ours."""
    times = list(zip(*rounds, strict=True))
    return [[own / other for own, other in zip(times[ours], theirs, strict=True)] for theirs in times[count:]]


def settled(rounds: Sequence[Sequence[float]], count: int) -> bool:
    """Whether the median of each ratio is known well enough. The first ``count`` times are ours."""
    rivals = [_ratios(rounds, ours, count) for ours in range(count)]
    first = [[times[ours] / times[0] for times in rounds] for ours in range(1, count)]
    return all(uncertainty(ratios) <= STABLE for ratios in itertools.chain(first, *rivals))


def print_table(contestants: Sequence[Contestant], names: Sequence[str], rounds: Sequence[Sequence[float]]) -> None:
    """Print a table with a line for each combination of varied values, and for each rival."""
    first, count, doubt = contestants[0].trainer, len(contestants), 0.0
    on_gpu = first.run.processes.device.type == "cuda"
    medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    rows = []
    for place, contestant in enumerate(contestants):
        ratios = _ratios(rounds, place, count)
        ratios += [[times[place] / times[0] for times in rounds]] if count > 1 else []
        doubt = max([doubt, *map(uncertainty, ratios)])
        rows.append(
            [
                *map(as_yaml, contestant.values.values()),
                contestant.ran_as,
                seconds(medians[place]),
                *map(_ratio, ratios),
                seconds(contestant.first_round),
                *([human(contestant.memory)] if on_gpu else []),
            ]
        )
    for name, median in zip(names, medians[count:], strict=True):
        empty = [""] * (len(names) + (count > 1) + 1 + on_gpu)
        rows.append([name, *[""] * (len(contestants[0].values) - 1), "", seconds(median), *empty])
    others = [f"of {name}" for name in names] + ["of the first"] * (count > 1)
    header = [*contestants[0].values, "ran as", "a round", *others, "first round", *["memory"] * on_gpu]
    print(
        f"{first.run.engine.processes.count} process(es), {torch.get_num_threads()} thread(s) each, {len(rounds)} rounds in turn"
    )
    _print_methods(first)
    print(markdown(header, rows))
    if STABLE < doubt < math.inf:
        print(f"this machine is noisy: a ratio is known to {doubt:.0%} only; free it, or give more --seconds")


def _ratio(values: Sequence[float]) -> str:
    median, doubt = statistics.median(values), uncertainty(values)
    return f"{median:.3f} +- {doubt * median:.3f}" if doubt < math.inf else f"{median:.3f}"


def _print_methods(trainer: Any) -> None:
    if trainer.methods:
        print(f"{' + '.join(type(method).__name__ for method in trainer.methods)}: in flcog's rounds alone")


def print_ratios(trainer: Any, names: Sequence[str], rounds: Sequence[Sequence[float]]) -> None:
    """Print our time, and each rival's time with the ratio."""
    engine, threads = trainer.run.engine, torch.get_num_threads()
    print(
        f"executor {engine.clients.executor.name}, {engine.processes.count} process(es), {threads} thread(s) each, {len(rounds)} rounds"
    )
    _print_methods(trainer)
    ours, *others = (statistics.median(times) for times in zip(*rounds, strict=True))
    width = max(map(len, ["flcog", *names]))
    print(f"{'flcog':<{width}} {ours:.4f} s a round")
    for name, theirs, ratios in zip(names, others, _ratios(rounds), strict=True):
        print(f"{name:<{width}} {theirs:.4f} s a round, ratio {_ratio(ratios)}")
        if STABLE < uncertainty(ratios) < math.inf:
            spread = f"{len(ratios)} rounds lie between {min(ratios):.3f} and {max(ratios):.3f}"
            print(f"this machine is noisy: {spread}; free it, or give more --seconds")
