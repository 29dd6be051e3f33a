"""Horvitz and Thompson, 1952, https://doi.org/10.1080/01621459.1952.10483446.

FedAvg divides changes by the sum of the weights; here they are divided by the probabilities of selection instead. BatchNorm's statistics
are still the weighted mean.
"""

import copy
from collections.abc import Callable

from reference.common import Client, Problem, State, average, mean_update, move, shares, train


def run(problem: Problem, probability: Callable[[Client], float], num_samples: int, equal_clients: bool = False) -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        locals_ = [train(problem, model, client) for client in clients]
        share = [1 / problem.num_clients if equal_clients else client.num_samples / num_samples for client in clients]
        weights = [p / probability(client) for p, client in zip(share, clients, strict=True)]
        step = mean_update(model, locals_, weights)
        statistics = average(locals_, [weight / sum(weights) for weight in weights] if clients else shares(clients))
        for name, buffer in model.named_buffers():
            buffer.copy_(statistics[name])
        move(model, step)
    return model.state_dict()
