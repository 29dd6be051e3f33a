"""Li et al., 2023, https://arxiv.org/abs/2212.02191, algorithm 1: SCAFFOLD on the parameters ``corrected``, FedAvg on the others.

With local momentum r, K steps along a constant gradient g end at ``-lr g sum_{t=1..K} (1 - r^t) / (1 - r)``; the sum replaces K.
"""

import copy
from collections.abc import Sequence

import torch
from reference.common import Problem, State, average, parameters, shares, train


def run(problem: Problem, corrected: Sequence[str], momentum: float = 0.0) -> State:
    model = copy.deepcopy(problem.model)
    c = {name: torch.zeros_like(model.get_parameter(name)) for name in corrected}
    c_of = dict.fromkeys(range(problem.num_clients), c)
    for clients in problem.rounds:
        x, locals_, changes = parameters(model), [], []
        for client in clients:
            c_k = c_of[client.id]

            def correct(local, c_k=c_k, c=c):
                for name in corrected:
                    local.get_parameter(name).grad += c[name] - c_k[name]

            local = train(problem, model, client, correct=correct)
            y = parameters(local)
            steps = sum((1 - momentum**t) / (1 - momentum) for t in range(1, len(client.batches) + 1))
            new = {name: c_k[name] - c[name] + (x[name] - y[name]) / (steps * problem.lr) for name in corrected}
            changes.append({name: new[name] - c_k[name] for name in corrected})
            c_of[client.id] = new
            locals_.append(local)
        c = {name: value + sum(change[name] for change in changes) / problem.num_clients for name, value in c.items()}
        model.load_state_dict(average(locals_, shares(clients)))
    return model.state_dict()
