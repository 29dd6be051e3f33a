"""FedAvg without a framework, as written by hand."""

import copy
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client_module import trains_itself
from flcog.commands.bench.batches import Batches
from flcog.core.fabric import num_cores
from flcog.core.trees import map_leaves
from flcog.functional.apply import masked_mean


def batches_of(trainer: Any) -> tuple[Batches, Any]:
    """Return the batches of a prepared trainer's clients without augmentation, and the structure of a batch."""
    engine, federation = trainer.run.engine, trainer.run.federation
    samples = engine.reader.train(federation.partition.indices)
    leaves, structure = pytree.tree_flatten(map_leaves(Tensor.contiguous, samples))
    layouts = {}
    for size in set(federation.partition.sizes.tolist()):
        starts, sizes, passes = engine.batching.layout(size, engine.batching.num_steps(size))
        layouts[size] = (starts.tolist(), sizes.tolist(), passes)
    return Batches(leaves, federation.partition.offsets.tolist(), layouts), structure


def wait_for_device(device: torch.device) -> None:
    """Wait for computations to finish, so that a clock measures all of them."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


class BareLoop:
    """Trains the trainer's model with its optimiser on every core, without methods."""

    name = "bare"

    def __init__(self, trainer: Any, batches: Batches, structure: Any) -> None:
        self.device, self.batches, self.structure = trainer.run.processes.device, batches, structure
        self.server, self._settings = copy.deepcopy(trainer.run.model.module), trainer.settings
        if trains_itself(self.server):
            raise ValueError(
                f"bench: {type(self.server).__name__} has its own training_step, which the bare loop does not call: give a "
                "flcog.ClientModule, which has a per_example_loss"
            )

    def round(self, number: int, clients: list[int]) -> float:
        """Train a round of these clients and return its seconds."""
        threads = torch.get_num_threads()
        torch.set_num_threads(num_cores())
        began = time.perf_counter()
        self._train(number, clients)
        wait_for_device(self.device)
        took = time.perf_counter() - began
        torch.set_num_threads(threads)
        return took

    def _train(self, number: int, clients: list[int]) -> None:
        samples = sum(map(self.batches.num_samples, clients))
        total = {name: torch.zeros_like(value) for name, value in self.server.state_dict().items()}
        for client in clients:
            model = copy.deepcopy(self.server)
            self._steps(model, self.batches.of(number, client))
            share = self.batches.num_samples(client) / samples
            for name, value in model.state_dict().items():
                total[name] += (value * share).to(value.dtype)
        self.server.load_state_dict(total)

    def _steps(self, model: Any, batches: Iterable[list[Tensor]]) -> None:
        optimizer = model.configure_optimizers()
        for leaves in batches:
            # A loop for two tensors does not spend microseconds on flattening trees.
            inputs, targets = leaves if len(leaves) == 2 else pytree.tree_unflatten(leaves, self.structure)
            optimizer.zero_grad()
            with self._settings.autocast(self.device):
                loss = masked_mean(model.per_example_loss(model(inputs), targets), None)
            loss.backward()
            optimizer.step()
