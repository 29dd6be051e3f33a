"""Successive halving: trains configurations for their first rounds, and stops the worse half (Jamieson and Talwalkar 2016).

No configuration is stopped before all methods of its row act (``start_round``): methods that start late, and small steps, would lose.
Runs of configurations that are not stopped are resumed after their first rounds, so that their results equal those without halving.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016,
https://arxiv.org/abs/1502.07943.
"""

import math
from collections.abc import Sequence

from flcog.commands.compare.candidates import Candidate, Train, in_places
from flcog.commands.compare.plan import Cell
from flcog.commands.compare.resolved import callbacks_of, resolved, start_of

SHARES = (0.25, 0.5)
"""The worse half is stopped after these shares of the rounds in which all methods act."""


def stop_worse_halves(found: Sequence[Candidate], train: Train) -> None:
    """Train the first rounds, and mark stopped candidates. The runs of the others stop for now, too.

    Args:
        found: all candidates of a table.
        train: trains cells.
    """
    for share in SHARES:
        stages: list[tuple[int, list[Candidate]]] = []
        for rivals in in_places(found).values():
            alive = [candidate for candidate in rivals if candidate.stopped is None]
            round = _round(rivals, share)
            if round is not None and len(alive) > 1:
                stages.append((round, alive))
        _train_until([(cell, round) for round, alive in stages for each in alive for cell in each.runs], train)
        for round, alive in stages:
            ranks = [candidate.rank(candidate.results(round)) for candidate in alive]
            for candidate, rank in zip(alive, ranks, strict=True):
                if rank > sorted(ranks)[math.ceil(len(ranks) / 2) - 1]:
                    candidate.stopped = round


def _train_until(stops: Sequence[tuple[Cell, int]], train: Train) -> None:
    """Train each cell until its round, unless it has come so far or has ended."""
    todo = [(cell, round) for cell, round in stops if not cell.finished and len(cell.history()) < round]
    for cell, round in todo:
        cell.stop_after = round
    train([cell for cell, _ in todo])
    for cell, _ in todo:
        cell.stop_after = None


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
