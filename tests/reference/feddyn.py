"""Acar et al., 2021, https://arxiv.org/abs/2111.04263, algorithm 1: the plain mean over the cohort, h over all clients.

Other ``weights`` replace the equal ones only in the mean, as in FedDisco's code.
"""

import copy
from dataclasses import replace

import torch
from reference.common import Problem, State, Weights, average, clip, equal, mean_update, move, parameters, train


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


def run_feddisco(problem: Problem, alpha: float, mean_size: float, weights: Weights = equal) -> State:
    """FedDisco's code: l_k sums a client's changes, the linear term has alpha / w_k, and alpha is added to the weight decay.

    w_k is the client's number of samples divided by ``mean_size``, the mean number of samples of all clients.
    """

    def decayed(params):
        optimizer = problem.optimizer(params)
        for group in optimizer.param_groups:
            group["weight_decay"] += alpha
        return optimizer

    model, decaying = copy.deepcopy(problem.model), replace(problem, optimizer=decayed)
    l_of = {k: {name: torch.zeros_like(value) for name, value in parameters(model).items()} for k in range(problem.num_clients)}
    for clients in problem.rounds:
        x, locals_ = parameters(model), []
        for client in clients:
            l_k = l_of[client.id]

            def penalty(local, l_k=l_k, x=x, strength=alpha * mean_size / client.num_samples):
                return strength * sum((value * (l_k[name] - x[name])).sum() for name, value in local.named_parameters())

            local = train(decaying, model, client, penalty=penalty, correct=clip)
            l_of[client.id] = {name: l_k[name] + value - x[name] for name, value in parameters(local).items()}
            locals_.append(local)
        model.load_state_dict(average(locals_, weights(clients)))
        move(model, {name: sum(l_k[name] for l_k in l_of.values()) / problem.num_clients for name in x})
    return model.state_dict()
