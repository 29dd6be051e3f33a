"""A client and its data, as hooks in plain Python see them, and facts about all clients, which each of them may know."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from flcog.core.trees import Tree
from flcog.core.types import Slot
from flcog.data import Exchange, Federation, Partition
from flcog.wire.packing import message


@message
class Population(NamedTuple):
    """Facts about all clients together, which every client may know.

    Args:
        num_clients: of the run.
        num_samples: the sum of the sizes of their training sets.
        task: the kind of label: ``classification``, ``multilabel`` or ``regression``.
        num_classes: labels, or bins of a regression's target.
        bin_edges: the inner edges of these bins, if clients cannot compute them because each has only its own data.
    """

    num_clients: int
    num_samples: int
    task: str
    num_classes: int
    bin_edges: Tensor | None = None

    @property
    def mean_size(self) -> float:
        """The mean size of the clients' training sets."""
        return self.num_samples / self.num_clients


@dataclass(frozen=True)
class ClientView:
    """One client as plain-Python hooks see it: its own data, and facts about all clients together.

    ``plan`` runs at the server, where a view has the sizes and no data.

    Args:
        id: its number.
        num_samples: the size of its training set.
        round: the round, counted from 0.
        population: facts about all clients.
        exchanges: the results of exchanges before round 1, by method.
        seed: the run's, for choices that are the same in all rounds.
    """

    id: int
    num_samples: int
    round: int
    population: Population
    exchanges: Mapping[str, Exchange] = field(default_factory=dict)
    _data: Federation | None = field(default=None, repr=False, compare=False)
    seed: int = 0

    @classmethod
    def of(cls, federation: Federation, client: int, round: int) -> "ClientView":
        """A client of a simulation, where all data are at hand.

        Args:
            federation: the data.
            client: its number.
            round: the round, counted from 0.
        """
        sizes = federation.partition.sizes
        population = Population(len(sizes), int(sizes.sum()), federation.task, federation.num_classes)
        return cls(client, int(sizes[client]), round, population, {}, federation)

    @property
    def num_classes(self) -> int:
        return self.population.num_classes

    @property
    def task(self) -> str:
        return self.population.task

    @property
    def label_counts(self) -> Tensor:
        """How many of its samples carry each label, float64 [num_classes]. For a regression, how many lie in each bin."""
        return self._own.label_counts(self.id)

    @property
    def bin_edges(self) -> Tensor:
        """The inner edges of a regression's bins."""
        return self._own.bin_edges

    @property
    def targets(self) -> Tensor:
        """The targets of its samples, if each is one tensor."""
        return self._own.train.targets[self._rows()]

    def inputs(self, positions: Tensor) -> Tree:
        """The inputs at some positions among its samples, ready for the model."""
        rows = self._rows(positions)
        return self._own.load(self._own.train, rows, rows.device)[0]

    def sample(self, count: int, rng: torch.Generator, validation: bool = False) -> Slot:
        """``inputs`` and ``targets`` of some of its samples, drawn with replacement, ready for the model.

        With ``validation`` they are drawn from those that it holds out (``client_val`` of the data module), if there are any.
        """
        part = self._own.client_val
        if not validation or part is None or part.sizes[self.id] == 0:
            part = self._own.partition
        rows = self._rows(torch.randint(int(part.sizes[self.id]), (count,), generator=rng), part)
        inputs, targets = self._own.load(self._own.train, rows, rows.device)
        return {"inputs": inputs, "targets": targets}

    def _rows(self, positions: Tensor | None = None, part: Partition | None = None) -> Tensor:
        """Its samples' places in the training set, where the targets are stored."""
        own = torch.from_numpy((self._own.partition if part is None else part).client(self.id))
        return (own if positions is None else own[positions]).to(self._own.train.labels.device)

    @property
    def _own(self) -> Federation:
        if self._data is None:
            raise ValueError(
                "the server sees only the sizes of clients' training sets: read the data in a hook of the client, such as init_client"
            )
        return self._data
