"""Hsu et al., 2019, https://arxiv.org/abs/1909.06335, and the two other forms that FedCOG's and FedDisco's code runs."""

import copy

import torch
from reference.common import Problem, State, Weights, mean_update, move, parameters, shares, train


def run(problem: Problem, beta: float, form: str = "standard", lr: float = 1.0, weights: Weights = shares) -> State:
    model = copy.deepcopy(problem.model)
    velocity = {name: torch.zeros_like(value) for name, value in parameters(model).items()}
    for number, clients in enumerate(problem.rounds):
        update = mean_update(model, [train(problem, model, client) for client in clients], weights(clients))
        for name, gradient in ((name, -value) for name, value in update.items()):
            if form == "feddisco":
                gradient = (1 - beta) * gradient
            velocity[name] = beta * velocity[name] + gradient
        divisor = 1 + beta if form == "fedcog" and number > 0 else 1
        move(model, {name: -lr * value / divisor for name, value in velocity.items()})
    return model.state_dict()
