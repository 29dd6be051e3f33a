"""FedAvg whose clients' changes of the parameters are shortened to a norm."""

import copy

import torch
from reference.common import Problem, State, shares, train


def vector(model, others) -> torch.Tensor:
    return torch.cat([(value.detach() - others[name]).flatten() for name, value in model.named_parameters()])


def run(problem: Problem, norm: float) -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        before = copy.deepcopy(model.state_dict())
        total = {name: value.clone() for name, value in before.items()}
        for client, share in zip(clients, shares(clients), strict=True):
            local = train(problem, model, client)
            parameters = dict(local.named_parameters())
            factor = min(1.0, norm / float(vector(local, before).norm()))
            for name, value in local.state_dict().items():
                if value.is_floating_point():
                    total[name] += share * (factor if name in parameters else 1.0) * (value - before[name])
                else:
                    total[name] = value
        model.load_state_dict(total)
    return model.state_dict()
