"""Which process trains which clients of a round."""

from collections.abc import Mapping

from flcog.server.engine import Engine


def share_out(engine: Engine, plans: Mapping[int, int]) -> list[list[int]]:
    """Positions in the cohort, by process: the longest first, each to the least busy.

    A client whose state a method keeps stays on the process that first trained it; everybody computes the same assignment.

    Args:
        engine: of the run.
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
