"""Prints the times of ``flcog bench`` as a table of ratios with their uncertainty."""

import itertools
import math
import statistics
from collections.abc import Sequence

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


def ratios(rounds: Sequence[Sequence[float]], count: int) -> list[list[list[float]]]:
    """For each of our times, its ratios in every round to each rival's and, if we have several, to our first."""
    times = list(zip(*rounds, strict=True))
    others = [*times[count:], *times[: count > 1]]
    return [[[own / other for own, other in zip(ours, theirs, strict=True)] for theirs in others] for ours in times[:count]]


def settled(rounds: Sequence[Sequence[float]], count: int) -> bool:
    """Whether the median of each ratio is known well enough. The first ``count`` times are ours."""
    return all(uncertainty(values) <= STABLE for values in itertools.chain(*ratios(rounds, count)))


def print_table(contestants: Sequence[Contestant], names: Sequence[str], rounds: Sequence[Sequence[float]]) -> None:
    """Print a table with a line for each combination of varied values, and for each rival."""
    trainer, count = contestants[0].trainer, len(contestants)
    on_gpu = trainer.run.processes.device.type == "cuda"
    medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    found = ratios(rounds, count)
    header = [*(contestants[0].values or ["program"]), "ran as", "a round", *(f"of {name}" for name in names)]
    header += ["of the first"] * (count > 1) + ["first round"] + ["memory"] * on_gpu
    rows = [
        [
            *(map(as_yaml, contestant.values.values()) if contestant.values else ["flcog"]),
            contestant.ran_as,
            seconds(median),
            *map(_ratio, own),
            seconds(contestant.first_round),
            *([human(contestant.memory)] if on_gpu else []),
        ]
        for contestant, median, own in zip(contestants, medians, found, strict=False)
    ]
    for name, median in zip(names, medians[count:], strict=True):
        row = [name, *[""] * (header.index("a round") - 1), seconds(median)]
        rows.append(row + [""] * (len(header) - len(row)))
    print(f"{trainer.run.processes.count} process(es), {torch.get_num_threads()} thread(s) each, {len(rounds)} rounds in turn")
    if trainer.methods:
        print(f"{' + '.join(type(method).__name__ for method in trainer.methods)}: in flcog's rounds alone")
    print(markdown(header, rows))
    doubt = max(uncertainty(values) for values in itertools.chain(*found))
    if STABLE < doubt < math.inf:
        print(f"this machine is noisy: a ratio is known to {doubt:.0%} only; free it, or give more --seconds")


def _ratio(values: Sequence[float]) -> str:
    median, doubt = statistics.median(values), uncertainty(values)
    return f"{median:.3f} +- {doubt * median:.3f}" if doubt < math.inf else f"{median:.3f}"
