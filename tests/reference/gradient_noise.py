"""FedAvg whose local steps see gradients with noise: eq. A.6 of https://arxiv.org/abs/2306.13263."""

import copy
from collections.abc import Callable

from reference.common import Problem, State, average, shares, train
from torch import Tensor, nn

Noise = Callable[[int, int, int, nn.Module], list[Tensor]]
"""Maps round, client, step and model to a standard normal tensor for each parameter."""


def run(problem: Problem, noise: Noise, sigma: float, dimension: int) -> State:
    model = copy.deepcopy(problem.model)
    for round, clients in enumerate(problem.rounds):
        ends = []
        for client in clients:
            step = iter(range(10**6))

            def disturb(local, client=client, step=step, round=round):
                for value, s in zip(local.parameters(), noise(round, client.id, next(step), local), strict=True):
                    value.grad += sigma / dimension**0.5 * s

            ends.append(train(problem, model, client, correct=disturb))
        model.load_state_dict(average(ends, shares(clients)))
    return model.state_dict()
