"""Successive halving: trains configurations for their first rounds, and stops the worse half (Jamieson and Talwalkar 2016).

No configuration is stopped before all methods of its row act (``start_round``): methods that start late, and small steps, would lose.
Configurations that are not stopped branch from their first rounds, so that their results equal those of runs without halving.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016,
https://arxiv.org/abs/1502.07943.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flcog.commands.compare.candidates import Candidate, Train, in_places
from flcog.commands.compare.plan import Trunk, cells
from flcog.commands.compare.resolved import callbacks_of, resolved, start_of

SHARES = (0.25, 0.5)
"""The worse half is stopped after these shares of the rounds in which all methods act."""


def stop_worse_halves(found: Sequence[Candidate], out: Path, extra: Sequence[str], train: Train) -> None:
    """Train the first rounds, and mark stopped candidates. Runs of the others are made to branch from their first rounds.

    Args:
        found: all candidates of a table.
        out: the folder of the grid's runs.
        extra: the user's own arguments.
        train: trains cells.
    """
    for share in SHARES:
        stages = []
        for rivals in in_places(found).values():
            alive = [candidate for candidate in rivals if candidate.stopped is None]
            round = _round(rivals, share)
            if round is not None and len(alive) > 1:
                stages.append((round, [(candidate, _beginning(candidate, round, out, extra)) for candidate in alive]))
        train([cell for _, stage in stages for _, begun in stage for cell in begun.runs if not cell.finished])
        for round, stage in stages:
            ranks = [begun.rank(begun.results(round)) for _, begun in stage]
            for (candidate, begun), rank in zip(stage, ranks, strict=True):
                if rank > sorted(ranks)[math.ceil(len(ranks) / 2) - 1]:
                    candidate.runs, candidate.stopped = begun.runs, round


def _round(rivals: Sequence[Candidate], share: float) -> int | None:
    """The evaluated round after which the worse half is stopped; None if there is none before the last."""
    configs = [config for each in rivals if (config := resolved(each.runs[0], each.runs[0].common_arguments))]
    if not configs:  # its runs report the error
        return None
    rounds, every = (max(config["trainer"][name] for config in configs) for name in ("rounds", "eval_every"))
    start = max((start_of(part) for config in configs for part in callbacks_of(config)), default=0)
    if not every or start >= rounds:
        return None
    round = math.ceil((start + share * (rounds - start)) / every) * every
    return round if round < rounds else None


def _beginning(candidate: Candidate, round: int, out: Path, extra: Sequence[str]) -> Candidate:
    """The candidate with runs of its first rounds, from which its own runs branch. Finished runs are their own beginning."""
    if all(cell.finished for cell in candidate.runs):
        return candidate
    runs = cells(candidate.arm, out / f"first-{round}", [*extra, "--trainer.rounds", str(round)])
    for cell, first in zip(candidate.runs, runs, strict=True):
        first.trunk, cell.trunk = cell.trunk, Trunk(first, round)
    return replace(candidate, runs=runs)
