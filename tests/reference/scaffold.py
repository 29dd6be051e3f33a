"""Karimireddy et al., 2020, https://arxiv.org/abs/1910.06378, algorithm 1 with option II, and the samples' weights in the mean.

With local momentum r, K steps along a constant gradient g end at ``-lr g sum_{t=1..K} (1 - r^t) / (1 - r)``; the sum replaces K.
"""

import copy

import torch
from reference.common import Problem, State, Weights, mean_update, move, parameters, shares, train


def run(problem: Problem, server_lr: float = 1.0, momentum: float = 0.0, weights: Weights = shares) -> State:
    model = copy.deepcopy(problem.model)
    c = {name: torch.zeros_like(value) for name, value in parameters(model).items()}
    c_of = {k: {name: torch.zeros_like(value) for name, value in c.items()} for k in range(problem.num_clients)}
    for clients in problem.rounds:
        x, locals_, changes = parameters(model), [], []
        for client in clients:
            c_k = c_of[client.id]

            def correct(local, c_k=c_k, c=c):
                for name, value in local.named_parameters():
                    value.grad += c[name] - c_k[name]

            local = train(problem, model, client, correct=correct)
            y = parameters(local)
            steps = sum((1 - momentum**t) / (1 - momentum) for t in range(1, len(client.batches) + 1))
            new = {name: c_k[name] - c[name] + (x[name] - y[name]) / (steps * problem.lr) for name in x}
            changes.append({name: new[name] - c_k[name] for name in x})
            c_of[client.id] = new
            locals_.append(local)
        update = mean_update(model, locals_, weights(clients))
        move(model, {name: server_lr * value for name, value in update.items()})
        c = {name: value + sum(change[name] for change in changes) / problem.num_clients for name, value in c.items()}
    return model.state_dict()


def run_feddisco(problem: Problem, weights: Weights = shares) -> State:
    """FedDisco's code: the model is corrected after the optimiser's step, and K is the number of steps for any momentum."""
    model = copy.deepcopy(problem.model)
    c = {name: torch.zeros_like(value) for name, value in parameters(model).items()}
    c_of = {k: {name: torch.zeros_like(value) for name, value in c.items()} for k in range(problem.num_clients)}
    for clients in problem.rounds:
        x, locals_, total = parameters(model), [], dict.fromkeys(c, 0)
        for client in clients:
            c_k = c_of[client.id]

            def after(local, c_k=c_k, c=c):
                move(local, {name: -problem.lr * (c[name] - c_k[name]) for name in c})

            local = train(problem, model, client, after=after)
            locals_.append(local)
            y, steps = parameters(local), len(client.batches)
            c_of[client.id] = {name: c_k[name] - c[name] + (x[name] - y[name]) / (steps * problem.lr) for name in x}
            total = {name: total[name] + c_of[client.id][name] - c_k[name] for name in x}
        move(model, mean_update(model, locals_, weights(clients)))
        c = {name: value + total[name] / problem.num_clients for name, value in c.items()}
    return model.state_dict()
