"""Training without federation: each client continues with its own model, and all start from the same weights."""

import copy

from reference.common import Problem, State, train


def solve(problem: Problem) -> dict[int, State]:
    """The own model of each client that has trained."""
    models = {}
    for clients in problem.rounds:
        for client in clients:
            models[client.id] = train(problem, models.get(client.id, problem.model), client)
    return {client: model.state_dict() for client, model in models.items()}


def run(problem: Problem) -> State:
    """The run's global model, which stays at the initial weights."""
    return copy.deepcopy(problem.model).state_dict()
