"""Jhunjhunwala et al., 2023, https://arxiv.org/abs/2301.09604, equation 5 with the samples' weights; epsilon decays every round.

With ``form="code"``, epsilon is multiplied by the number of clients, as in the authors' code.
"""

import copy

from reference.common import Problem, State, mean_update, move, parameters, shares, train


def run(problem: Problem, epsilon: float, decay: float = 1.0, form: str = "code") -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        x = parameters(model)
        locals_ = [train(problem, model, client) for client in clients]
        squares = [sum((y - x[name]).pow(2).sum() for name, y in parameters(local).items()) for local in locals_]
        mean = mean_update(model, locals_, shares(clients))
        numerator = sum(p * square for p, square in zip(shares(clients), squares, strict=True))
        denominator = sum(value.pow(2).sum() for value in mean.values()) + epsilon * {"code": len(clients), "paper": 1}[form]
        step = max(1.0, float(numerator / denominator) / 2)
        move(model, {name: step * value for name, value in mean.items()})
        epsilon *= decay
    return model.state_dict()
