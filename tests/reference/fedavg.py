"""McMahan et al., 2017, https://arxiv.org/abs/1602.05629: the mean of the clients' models, weighted by their samples."""

import copy

from reference.common import Problem, State, average, shares, train


def run(problem: Problem, uniform: bool = False) -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        weights = [1 / len(clients)] * len(clients) if uniform else shares(clients)
        model.load_state_dict(average([train(problem, model, client) for client in clients], weights))
    return model.state_dict()
