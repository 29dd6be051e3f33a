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


def run_feddisco(problem: Problem, batch_size: int, weights: Weights = shares) -> State:
    """FedDisco's code: steps are the full batches of one pass, and models are scaled about the old one before the mean."""
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        x, p = parameters(model), weights(clients)
        steps = [max(1, client.num_samples // batch_size) for client in clients]
        effective = sum(p_k * a for p_k, a in zip(p, steps, strict=True))
        factors = [p_k / a * effective for p_k, a in zip(p, steps, strict=True)]
        ends = [parameters(train(problem, model, client)) for client in clients]
        new = {n: (1 - sum(factors)) * x[n] + sum(f * end[n] for f, end in zip(factors, ends, strict=True)) for n in x}
        move(model, {name: new[name] - x[name] for name in x})
    return model.state_dict()
