"""Li et al., 2020, https://arxiv.org/abs/1812.06127, algorithm 2 with the samples' weights of its experiments."""

import copy

from reference.common import Problem, State, Weights, average, parameters, shares, train


def run(problem: Problem, mu: float, weights: Weights = shares) -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        received = parameters(model)

        def proximal(local, received=received):
            return mu / 2 * sum((value - received[name]).pow(2).sum() for name, value in local.named_parameters())

        model.load_state_dict(average([train(problem, model, client, penalty=proximal) for client in clients], weights(clients)))
    return model.state_dict()
