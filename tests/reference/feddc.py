"""Gao et al., 2022, https://arxiv.org/abs/2203.11751, as in the authors' code with clients of equal weight.

Other ``weights`` replace the equal ones only in the mean, as in FedDisco's code.

The gradient correction is a linear term of the loss. With local momentum r, K steps along a constant gradient g end at
``-lr g sum_{t=1..K} (1 - r^t) / (1 - r)``; the sum replaces K.
"""

import copy

import torch
from reference.common import Problem, State, Weights, average, clip, equal, move, parameters, train


def run(problem: Problem, alpha: float, momentum: float = 0.0, weights: Weights = equal) -> State:
    model = copy.deepcopy(problem.model)
    zeros = {name: torch.zeros_like(value) for name, value in parameters(model).items()}
    drift_of = dict.fromkeys(range(problem.num_clients), zeros)
    g_of = dict.fromkeys(range(problem.num_clients), zeros)
    g = zeros
    for clients in problem.rounds:
        x, locals_, change = parameters(model), [], zeros
        for client in clients:
            h_k, g_k = drift_of[client.id], g_of[client.id]

            def penalty(local, x=x, h_k=h_k, g_k=g_k, g=g):
                drifted = sum((y - (x[name] - h_k[name])).pow(2).sum() for name, y in local.named_parameters())
                return alpha / 2 * drifted + sum((y * (g[name] - g_k[name])).sum() for name, y in local.named_parameters())

            local = train(problem, model, client, penalty=penalty)
            y = parameters(local)
            steps = sum((1 - momentum**t) / (1 - momentum) for t in range(1, len(client.batches) + 1))
            new = {name: g_k[name] - g[name] - (y[name] - x[name]) / (steps * problem.lr) for name in x}
            change = {name: change[name] + new[name] - g_k[name] for name in x}
            drift_of[client.id] = {name: h_k[name] + y[name] - x[name] for name in x}
            g_of[client.id] = new
            locals_.append(local)
        g = {name: value + change[name] / problem.num_clients for name, value in g.items()}
        model.load_state_dict(average(locals_, weights(clients)))
        move(model, {name: sum(drift[name] for drift in drift_of.values()) / problem.num_clients for name in x})
    return model.state_dict()


def run_feddisco(problem: Problem, alpha: float, mean_size: float, weights: Weights = equal) -> State:
    """FedDisco's code uses only drifts. The penalty has alpha / w_k, with w_k as in FedDyn's reference.

    Gradients are clipped and not corrected.
    """
    model = copy.deepcopy(problem.model)
    drifts = {k: {name: torch.zeros_like(value) for name, value in parameters(model).items()} for k in range(problem.num_clients)}
    for clients in problem.rounds:
        x, locals_ = parameters(model), []
        for client in clients:
            own = drifts[client.id]

            def penalty(local, own=own, x=x, strength=alpha * mean_size / client.num_samples):
                return strength / 2 * sum((y - (x[name] - own[name])).square().sum() for name, y in local.named_parameters())

            local = train(problem, model, client, penalty=penalty, correct=clip)
            drifts[client.id] = {name: own[name] + value - x[name] for name, value in parameters(local).items()}
            locals_.append(local)
        model.load_state_dict(average(locals_, weights(clients)))
        move(model, {name: sum(drift[name] for drift in drifts.values()) / problem.num_clients for name in x})
    return model.state_dict()
