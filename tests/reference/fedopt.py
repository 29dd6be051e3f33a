"""Reddi et al., 2021, https://arxiv.org/abs/2003.00295, algorithm 2, with the samples' weights in the mean."""

import copy

import torch
from reference.common import Problem, State, mean_update, move, parameters, shares, train


def run(problem: Problem, form: str, lr: float, beta1: float, tau: float, beta2: float = 0.0) -> State:
    model = copy.deepcopy(problem.model)
    m = {name: torch.zeros_like(value) for name, value in parameters(model).items()}
    v = {name: torch.full_like(value, tau * tau) for name, value in m.items()}
    for clients in problem.rounds:
        update = mean_update(model, [train(problem, model, client) for client in clients], shares(clients))
        step = {}
        for name, d in update.items():
            m[name] = beta1 * m[name] + (1 - beta1) * d
            if form == "adagrad":
                v[name] = v[name] + d**2
            elif form == "yogi":
                v[name] = v[name] - (1 - beta2) * d**2 * torch.sign(v[name] - d**2)
            else:
                v[name] = beta2 * v[name] + (1 - beta2) * d**2
            step[name] = lr * m[name] / (torch.sqrt(v[name]) + tau)
        move(model, step)
    return model.state_dict()
