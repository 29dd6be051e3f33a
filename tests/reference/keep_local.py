"""Parts of a model that stay at each client (FedPer, LG-FedAvg, FedBN), also beside FedProx and SCAFFOLD on the shared part."""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from reference.common import Problem, State, average, averaged, parameters, shares, train
from torch import nn


def solve(
    problem: Problem, stays: Callable[[str], bool], mu: float = 0.0, variates: bool = False
) -> tuple[State, dict[int, State]]:
    """The shared model, whose own values of the parts that stay are the initial ones, and each client's own values."""
    model, own = copy.deepcopy(problem.model), dict[int, State]()
    first = {name: value.detach().clone() for name, value in model.state_dict().items() if stays(name)}
    shared = [name for name in parameters(model) if not stays(name)]
    server = {name: torch.zeros_like(parameters(model)[name]) for name in shared}
    controls = dict[int, State]()
    for clients in problem.rounds:
        received, locals_, changes = parameters(model), [], []
        for client in clients:
            mine = copy.deepcopy(model)
            mine.load_state_dict(own.get(client.id, first), strict=False)
            control = controls.setdefault(client.id, {name: torch.zeros_like(value) for name, value in server.items()})

            def pull(local: nn.Module, received: State = received) -> torch.Tensor:
                return mu / 2 * sum((v - received[name]).square().sum() for name, v in local.named_parameters() if name in shared)

            def correct(local: nn.Module, control: State = control, server: State = server) -> None:
                for name, value in local.named_parameters():
                    if variates and name in shared:
                        value.grad.add_(server[name] - control[name])

            local = train(problem, mine, client, penalty=pull if mu else None, correct=correct)
            own[client.id] = {name: value.detach().clone() for name, value in local.state_dict().items() if stays(name)}
            end, length = parameters(local), problem.lr * len(client.batches)
            change = {name: (received[name] - end[name]) / length - server[name] for name in shared}
            controls[client.id] = {name: control[name] + change[name] for name in shared}
            changes.append(change)
            locals_.append(local)
        model.load_state_dict(average(locals_, shares(clients)) | first)
        if variates:
            server = {name: v + sum(change[name] for change in changes) / problem.num_clients for name, v in server.items()}
    return model.state_dict(), own


def freeze(problem: Problem, stays: Callable[[str], bool]) -> State:
    """FedAvg in which nobody trains these parameters."""
    model = copy.deepcopy(problem.model)
    for name, value in model.named_parameters():
        value.requires_grad_(not stays(name))
    return averaged(replace(problem, model=model))
