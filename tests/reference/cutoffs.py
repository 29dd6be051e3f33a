"""FedAvg over the clients that have finished in time, where a local step takes a second."""

import copy
from collections.abc import Callable
from dataclasses import replace

from reference import fedavg
from reference.common import Client, Problem, State


def run(
    problem: Problem, seconds: float | None = None, first: int | None = None, draws: Callable[[int, int], int] | None = None
) -> State:
    """The clients with at most ``seconds`` steps count, or the ``first`` ones to finish.

    Args:
        problem: of all clients.
        seconds: the end of a round.
        first: the number of clients that count.
        draws: a number for each round and client. Of clients that finish at the same time, those with smaller numbers come first.
    """

    def in_time(round: int, clients: list[Client]) -> list[Client]:
        if seconds is not None:
            return [client for client in clients if len(client.batches) <= seconds]
        assert draws is not None
        return sorted(clients, key=lambda client: (len(client.batches), draws(round, client.id)))[:first]

    rounds = [in_time(round, clients) for round, clients in enumerate(problem.rounds)]
    return fedavg.run(replace(problem, model=copy.deepcopy(problem.model), rounds=rounds))
