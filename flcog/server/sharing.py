"""Divide the clients of a round among the processes."""

from collections.abc import Mapping

from flcog.server.engine import Engine


def share_out(engine: Engine, plans: Mapping[int, int]) -> list[list[int]]:
    """Assign each client to the least busy process, longest first, and return each process's positions in the cohort.

    A client with a state stays on the process that first trained it. All processes compute the same assignment.

    Args:
        engine: the run's engine.
        plans: the cohort's clients with their numbers of steps.
    """
    count, cohort, steps = engine.processes.count, list(plans), list(plans.values())
    if count == 1:
        return [list(range(len(cohort)))]
    shares: list[list[int]] = [[] for _ in range(count)]
    load = [0] * count
    stateful = engine.clients.stateful
    owner = engine.clients.store.owner if stateful else {}
    for i in sorted(range(len(cohort)), key=lambda i: (cohort[i] not in owner, -steps[i], cohort[i])):
        rank = owner.get(cohort[i])
        if rank is None:
            rank = min(range(count), key=load.__getitem__)
            if stateful:
                owner[cohort[i]] = rank
        shares[rank].append(i)
        load[rank] += steps[i]
    return [sorted(share) for share in shares]
