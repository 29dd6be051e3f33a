"""Acar et al., 2021, https://arxiv.org/abs/2111.04263, algorithm 1: the plain mean over the cohort, h over all clients.

Other ``weights`` take the place of the plain ones in the mean alone, as in FedDisco's code.
"""

import copy

import torch
from reference.common import Problem, State, Weights, equal, mean_update, move, parameters, train


def run(problem: Problem, alpha: float, weights: Weights = equal) -> State:
    model = copy.deepcopy(problem.model)
    h = {name: torch.zeros_like(value) for name, value in parameters(model).items()}
    g_of = {k: {name: torch.zeros_like(value) for name, value in h.items()} for k in range(problem.num_clients)}
    for clients in problem.rounds:
        x, locals_ = parameters(model), []
        for client in clients:
            g = g_of[client.id]

            def penalty(local, g=g, x=x):
                parts = local.named_parameters()
                return sum(alpha / 2 * (value - x[name]).pow(2).sum() - (g[name] * value).sum() for name, value in parts)

            local = train(problem, model, client, penalty=penalty)
            g_of[client.id] = {name: g[name] - alpha * (value - x[name]) for name, value in parameters(local).items()}
            locals_.append(local)
        ends = [parameters(local) for local in locals_]
        h = {n: h[n] - alpha * (1 / problem.num_clients) * sum(end[n] - x[n] for end in ends) for n in h}
        mean = mean_update(model, locals_, weights(clients))
        move(model, {name: value - h[name] / alpha for name, value in mean.items()})
    return model.state_dict()
