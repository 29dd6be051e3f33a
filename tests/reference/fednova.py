"""Wang et al., 2020, https://arxiv.org/abs/2007.07481, equation 6 for SGD with momentum; a is summed step by step.

The gradient of step j enters the buffer of step j and of all later ones, decayed: a_j = sum_{t=j..K} r^(t - j).
"""

import copy

from reference.common import Problem, State, Weights, move, parameters, shares, train


def run(problem: Problem, momentum: float = 0.0, weights: Weights = shares) -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        x, step, effective = parameters(model), {}, 0.0
        for p, client in zip(weights(clients), clients, strict=True):
            y = parameters(train(problem, model, client))
            steps = len(client.batches)
            a = sum(momentum ** (t - j) for j in range(steps) for t in range(j, steps))
            effective += p * a
            for name in x:
                step[name] = step.get(name, 0) + p * (y[name] - x[name]) / a
        move(model, {name: effective * value for name, value in step.items()})
    return model.state_dict()
