"""FedAvg whose clients' changes, buffers included, are shortened to a norm."""

import copy

import torch
from reference.common import Problem, State, shares, train


def vector(model, others) -> torch.Tensor:
    state = model.state_dict()
    changes = [state[name] - value for name, value in others.items() if value.is_floating_point()]
    return torch.cat([change.flatten() for change in changes])


def run(problem: Problem, norm: float) -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        before = copy.deepcopy(model.state_dict())
        total = {name: value.clone() for name, value in before.items()}
        for client, share in zip(clients, shares(clients), strict=True):
            local = train(problem, model, client)
            factor = min(1.0, norm / float(vector(local, before).norm()))
            for name, value in local.state_dict().items():
                if value.is_floating_point():
                    total[name] += share * factor * (value - before[name])
                else:
                    total[name] = value
        model.load_state_dict(total)
    return model.state_dict()
