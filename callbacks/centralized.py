"""Centralized: one model trained on the pooled data of all clients, for comparison with federated methods."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from flcog.data import Exchange, Federation, Partition
from flcog.method import DataExchange


@dataclass(frozen=True)
class Centralized(DataExchange):
    """Trains one model on the pooled data of all clients, with as many steps in a round as the round's clients take together.

    Papers draw this bound as a line above federated methods. With m of N clients in a round, and n samples in all::

        x <- x - lr grad F(x),   F = sum_k n_k / n F_k,   m local_steps times a round, or local_epochs m / N times over all samples

    So it reads as many samples, and takes as long, as the other rows of a table. Papers rarely state the budget of this bound:
    raise ``trainer.rounds`` or ``trainer.local_steps`` for a larger budget. Batch size and optimiser are the clients'. As at a
    client, the optimiser starts each round without momentum, and the learning rate's schedule counts rounds. Nothing is sent: 0
    bytes. The pool includes data that methods listed before it exchange before round 1 (Fedssyn's synthetic data), and their
    bytes count.

    Li et al., Synthetic data shuffling accelerates the convergence of federated learning under data heterogeneity, 2024,
    https://arxiv.org/abs/2306.13263, Figures 3 and 4, have such lines.

    Example:
        >>> Centralized().communicates
        False
    """

    communicates = False
    excludes: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("Ditto", "FedRep", "FineTune", "Local"),
        "the pooled data belong to one client, so no other client has a model of its own",
    )

    def prepare_data(self, federation: Federation, rng: torch.Generator, workspace: Path | None) -> Exchange:
        pool = Partition.from_clients([federation.partition.indices])
        return Exchange(replace(federation, partition=pool, whole=federation.split))
