"""Federated averaging of clipped changes with a fixed divisor, without noise."""

import copy

import torch
from reference.common import Problem, State, move, parameters, train


def run(problem: Problem, clip: float, expected: float, per_layer: bool = False, full_weight: float | None = None) -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        before = parameters(model)
        total = {name: torch.zeros_like(value) for name, value in before.items()}
        for client in clients:
            local = parameters(train(problem, model, client))
            change = {name: local[name] - value for name, value in before.items()}
            layers = {name.rpartition(".")[0]: None for name in change} if per_layer else {"": None}
            groups = [[name for name in change if name.startswith(layer)] for layer in layers]
            weight = 1.0 if full_weight is None else min(1.0, client.num_samples / full_weight)
            for group in groups:
                norm = torch.cat([change[name].flatten() for name in group]).norm()
                factor = min(1.0, clip / len(groups) ** 0.5 / float(norm))
                for name in group:
                    total[name] += weight * factor * change[name]
        move(model, {name: value / expected for name, value in total.items()})
    return model.state_dict()
