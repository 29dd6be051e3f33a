"""Federated averaging in plain torch, for the references of the methods. Nothing here knows flcog."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = dict[str, Tensor]


class Client(NamedTuple):
    """One client's part in a round: the targets of its samples, and the batches it steps through."""

    id: int
    labels: Tensor
    batches: list[tuple[Tensor, Tensor]]

    @property
    def num_samples(self) -> int:
        return len(self.labels)


@dataclass
class Problem:
    """The input of a reference: the initial model, every round's clients, and the local optimiser."""

    model: nn.Module
    rounds: list[list[Client]]
    num_clients: int
    optimizer: Callable[..., torch.optim.Optimizer]
    lr: float
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy


def train(
    problem: Problem,
    model: nn.Module,
    client: Client,
    penalty: Callable[[nn.Module], Tensor] | None = None,
    correct: Callable[[nn.Module], None] | None = None,
    after: Callable[[nn.Module], None] | None = None,
    backward: Callable[[nn.Module, Tensor, Tensor], None] | None = None,
) -> nn.Module:
    """A copy of ``model`` after the client's steps.

    ``penalty`` joins the loss, ``correct`` edits ``.grad`` before the optimiser's step, and ``after`` edits the parameters after it.
    ``backward(local, inputs, targets)`` computes ``.grad`` in another way.
    """
    local = copy.deepcopy(model).train()
    optimizer = problem.optimizer(local.parameters())
    for inputs, targets in client.batches:
        optimizer.zero_grad()
        if backward is not None:
            backward(local, inputs, targets)
        else:
            loss = problem.loss(local(inputs), targets)
            (loss if penalty is None else loss + penalty(local)).backward()
        if correct is not None:
            correct(local)
        optimizer.step()
        if after is not None:
            after(local)
    return local


def clip(local: nn.Module, max_norm: float = 10) -> None:
    """Clips every gradient, by default as the code of FedDyn and of FedDC does."""
    torch.nn.utils.clip_grad_norm_(local.parameters(), max_norm)


def shares(clients: list[Client]) -> list[float]:
    """Each client's share of the cohort's samples."""
    total = sum(client.num_samples for client in clients)
    return [client.num_samples / total for client in clients]


def equal(clients: list[Client]) -> list[float]:
    return [1 / len(clients)] * len(clients)


Weights = Callable[[list[Client]], list[float]]
"""A cohort's aggregation weights."""


def average(models: list[nn.Module], weights: list[float]) -> State:
    """The weighted mean of the models, buffers included."""
    states = [model.state_dict() for model in models]
    means = {name: sum(w * state[name].double() for w, state in zip(weights, states, strict=True)) for name in states[0]}
    return {name: mean if states[0][name].is_floating_point() else mean.round().long() for name, mean in means.items()}


def parameters(model: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@torch.no_grad()
def move(model: nn.Module, step: State) -> None:
    """``x <- x + step`` for the parameters."""
    for name, value in model.named_parameters():
        value.add_(step[name])


def mean_update(model: nn.Module, locals_: list[nn.Module], weights: list[float]) -> State:
    """``sum_k p_k (y_k - x)`` for the parameters."""
    before, ends = parameters(model), [parameters(local) for local in locals_]
    return {n: sum(w * (end[n] - before[n]) for w, end in zip(weights, ends, strict=True)) for n in before}


def averaged(problem: Problem, one: Callable[..., nn.Module] = train, weights: Weights = shares) -> State:
    """FedAvg of ``one(problem, model, client)``, each client's model after its steps."""
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        model.load_state_dict(average([one(problem, model, client) for client in clients], weights(clients)))
    return model.state_dict()
