"""FedAvg whose clients round their changes, and their buffers, to 16 bits."""

import copy

import torch
from reference.common import Problem, State, shares, train


def run(problem: Problem, type: torch.dtype) -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        before, names = copy.deepcopy(model.state_dict()), {name for name, _ in model.named_parameters()}
        total = {name: value.clone() for name, value in before.items()}
        for client, share in zip(clients, shares(clients), strict=True):
            for name, value in train(problem, model, client).state_dict().items():
                if name in names:
                    total[name] += share * (value - before[name]).to(type).double()
                elif value.is_floating_point():
                    total[name] += share * (value.to(type).double() - before[name])
                else:
                    total[name] = value
        model.load_state_dict(total)
    return model.state_dict()
