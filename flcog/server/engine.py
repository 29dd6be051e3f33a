"""The engine: everything that the rounds of a run use and never change."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.messages import Clients, RollCall, Split
from flcog.client_module import ClientModule
from flcog.core.processes import Processes
from flcog.core.progress import Progress
from flcog.core.trees import divide_again
from flcog.core.types import Params
from flcog.data import CentralSets, Exchange, Federation, Samples
from flcog.data.batching import Batching
from flcog.data.reading import Reader
from flcog.functional.evaluation import Evaluator
from flcog.functional.model_function import ModelFunction
from flcog.method import ClientView, Method, Notes, Optimisation, local_names
from flcog.method.client_view import Population
from flcog.server.state import ServerState
from flcog.settings import Settings


@dataclass(frozen=True)
class Engine:
    """The constant parts of a run.

    ``central`` are the server's own data sets, ``val`` and ``test``. ``reweighted_test``: whether clients are tested on the test set,
    every class weighted by its share of the client's samples. ``exchanges`` are the results of ``prepare_data``, by method.
    """

    settings: Settings
    methods: Sequence[Method]
    model: ModelFunction
    optimizer: torch.optim.Optimizer
    roll_call: RollCall
    central: Mapping[Split, Samples | None]
    reweighted_test: bool
    exchanges: Mapping[str, Exchange]
    batching: Batching
    reader: Reader
    evaluator: Evaluator
    clients: Clients
    processes: Processes
    data_name: str
    notes: Notes
    progress: Progress

    @property
    def seed(self) -> int:
        return self.settings.seed

    @cached_property
    def population(self) -> Population:
        """Facts about all clients together."""
        return self.roll_call.population

    @cached_property
    def sample_ends(self) -> np.ndarray:
        """The running sum of the clients' sizes, for selections by size."""
        return np.cumsum(self.roll_call.sizes.numpy())

    @cached_property
    def local(self) -> Collection[str]:
        """The parameters and buffers that stay at the clients."""
        return local_names(self.methods, self.model)

    @property
    def num_clients(self) -> int:
        return len(self.roll_call.sizes)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """The sizes of the training sets, as an array, because reading single numbers of a tensor is slow."""
        return self.roll_call.sizes.numpy()

    @property
    def cohort_size(self) -> int:
        """The number of clients in a round."""
        return self.settings.cohort_size(self.roll_call.asked, self.num_clients)

    @property
    def federation(self) -> Federation:
        """The data of all clients, for observers and commands that study a simulation. The server never reads it."""
        if self.clients.here is None:
            return CentralSets.of(self.reader.federation, self._sizes)
        federation: Federation = self.clients.here.federation
        return federation

    def active(self, round: int) -> list[Method]:
        """The active methods of a round, counted from 0."""
        return [method for method in self.methods if method.active(round)]

    def view(self, client: int, round: int) -> ClientView:
        """A client's view for ``plan``: its number and the size of its training set."""
        return ClientView(client, self.size(client), round, self.population, seed=self.seed)

    def size(self, client: int) -> int:
        """The size of a client's training set."""
        return int(self._sizes[client])

    @property
    def group_rates(self) -> list[float]:
        """The learning rates of the optimiser's groups, which schedulers change between rounds."""
        return [group.get("lr", 0.0) for group in self.optimizer.param_groups]

    def local_optimiser(self, round: int, of_groups: Sequence[float] | None = None) -> tuple[list[float], Optimisation]:
        """The groups' learning rates in a round, by default their present ones, times the module's schedule; and the settings of the
        local optimiser, for methods."""
        module = self.model.module
        schedule = module.lr_schedule if isinstance(module, ClientModule) else None
        factor = 1.0 if schedule is None else schedule(round)
        rates = [rate * factor for rate in of_groups or self.group_rates]
        group = next(iter(self.optimizer.param_groups), {})  # a module may have no optimiser
        # A scheduler of steps may begin at 0.
        rate = next(iter(rates), 0.0) or group.get("initial_lr", 0.0)
        own = {name: group[name] for name in ("dampening", "nesterov") if name in group}
        return rates, Optimisation(rate, group.get("momentum", 0.0), group.get("weight_decay", 0.0), **own)

    @torch.no_grad()
    def hand_over(self, server: ServerState, params: Params | None = None) -> None:
        """Load the global model into the user's module, which contains the last client's model."""
        divide_again(self.model.module)
        self.model.renew_buffers()
        self.model.load((params or server.params) | server.buffers)

    def to_device(self, tree: Any) -> Any:
        """Move the tensors of a tree to the run's device."""
        device = self.processes.device
        return tree if device.type == "cpu" else pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), tree)
