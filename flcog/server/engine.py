"""The engine: everything that a run's rounds use and do not change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.apply import ModelFunction
from flcog.client.messages import Clients
from flcog.client_module import ClientModule
from flcog.core.processes import Processes
from flcog.data import Exchange, Federation
from flcog.data.batching import Batching
from flcog.evaluation import Evaluator
from flcog.method import ClientView, Method, Notes, Optimisation
from flcog.reading import Reader
from flcog.server.state import ServerState
from flcog.settings import Settings


@dataclass(frozen=True)
class Engine:
    """All that rounds are made with and do not change.

    Args:
        settings: what the user asked of the training.
        methods: of the run, in the order in which they act.
        model: the client's model, on its device.
        optimizer: the module's own.
        base_rates: the learning rates of its groups, before any schedule.
        federation: the data, after what methods exchanged before round 1.
        exchanges: what these results of ``prepare_data`` are, by the methods' names.
        batching: how a client's samples become steps.
        reader: turns sample indices into tensors.
        evaluator: measures models.
        clients: the clients, which do their work when they are sent tasks.
        processes: who shares the clients out.
        data_name: what kind of data module the data came from.
        notes: choices made on the user's behalf, for the run's summary.
    """

    settings: Settings
    methods: Sequence[Method]
    model: ModelFunction
    optimizer: torch.optim.Optimizer
    base_rates: Sequence[float]
    federation: Federation
    exchanges: Mapping[str, Exchange]
    batching: Batching
    reader: Reader
    evaluator: Evaluator
    clients: Clients
    processes: Processes
    data_name: str
    notes: Notes

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def cohort_size(self) -> int:
        """How many clients are sampled in a round."""
        return cohort_size(self.settings, self.federation)

    def active(self, round: int) -> list[Method]:
        """The methods that act in a round, counted from 0."""
        return [method for method in self.methods if method.active(round)]

    def view(self, client: int, round: int) -> ClientView:
        """A client as plain-Python hooks see it."""
        offsets = self.federation.partition.offsets
        return ClientView(client, int(offsets[client + 1] - offsets[client]), round, self.federation, self.exchanges)

    def rates(self, round: int) -> list[float]:
        """The learning rates of the optimiser's groups in a round."""
        module = self.model.module
        schedule = module.lr_schedule if isinstance(module, ClientModule) else None
        factor = 1.0 if schedule is None else schedule(round)
        return [rate * factor for rate in self.base_rates]

    def optimisation(self, round: int) -> Optimisation:
        """The local optimiser as methods know it in a round."""
        group = self.optimizer.param_groups[0]
        return Optimisation(self.rates(round)[0], group.get("momentum", 0.0), group.get("weight_decay", 0.0))

    @torch.no_grad()
    def hand_over(self, server: ServerState) -> None:
        """Load the global model into the user's module, which until now holds the last client's."""
        for name, value in (server.params | server.buffers).items():
            (self.model.params.get(name, self.model.buffers.get(name))).copy_(value)  # type: ignore[union-attr]

    def to_device(self, tree: Any) -> Any:
        """A tree with its tensors where the run computes."""
        device = self.processes.device
        return tree if device.type == "cpu" else pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), tree)


def cohort_size(settings: Settings, federation: Federation) -> int:
    """The number of clients in a round: as many as were asked for, of the clients that methods have left."""
    return min(settings.cohort_size(federation.split.num_clients), federation.num_clients)
