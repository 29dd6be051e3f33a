"""Bonawitz et al., 2017, https://eprint.iacr.org/2017/281, without masks: the mean of weighted changes in fixed point."""

import copy

from reference.common import Problem, State, train


def run(problem: Problem, fraction_bits: int) -> State:
    """Every client rounds its weighted change and its weight to multiples of 2^-f; the server divides the sums."""
    model, unit = copy.deepcopy(problem.model), 2.0**-fraction_bits
    for clients in problem.rounds:
        before, total = copy.deepcopy(model.state_dict()), sum(client.num_samples for client in clients)
        sums, weights = {name: 0.0 * value.double() for name, value in before.items()}, 0.0
        for client in clients:
            weight = client.num_samples / total
            weights += unit * round(weight / unit)
            for name, value in train(problem, model, client).state_dict().items():
                sums[name] += unit * (weight * (value - before[name]).double() / unit).round()
        model.load_state_dict(
            {n: before[n] + (s / weights if before[n].is_floating_point() else (s / weights).round()) for n, s in sums.items()}
        )
    return model.state_dict()
