"""FedAvg over the clients that have finished in time, where a local step takes a second."""

import copy
from dataclasses import replace

from reference import fedavg
from reference.common import Client, Problem, State


def run(problem: Problem, seconds: float | None = None, first: int | None = None) -> State:
    """The clients with at most ``seconds`` steps count, or the ``first`` ones to finish."""

    def in_time(clients: list[Client]) -> list[Client]:
        if seconds is not None:
            return [client for client in clients if len(client.batches) <= seconds]
        return sorted(clients, key=lambda client: (len(client.batches), client.id))[:first]

    problem = replace(problem, model=copy.deepcopy(problem.model), rounds=[in_time(clients) for clients in problem.rounds])
    return fedavg.run(problem)
