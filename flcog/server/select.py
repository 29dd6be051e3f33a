"""Select the clients of a round, and let the selection remember the round."""

from collections.abc import Sequence

import torch

from flcog.core.randomness import fold, make_rng
from flcog.method import ClientPool, RoundRecord, Selected, Selection, selection_of
from flcog.server.engine import Engine
from flcog.server.state import ServerState


def select(engine: Engine, server: ServerState) -> Selected:
    """Select the clients of the coming round."""
    population = ClientPool(
        round=server.round,
        sizes=engine.roll_call.sizes,
        num_samples=engine.population.num_samples,
        key=fold(engine.seed, server.round, "cohort"),
    )
    method = selection_of(engine.active(server.round))
    if method is None:
        return Selected(population.draw(engine.cohort_size))
    rng = make_rng(engine.seed, server.round, "selection", method.name)
    selected = method.select(server.servers[method.name], population, engine.cohort_size, rng)
    _check(method, selected, engine.num_clients)
    return selected


def remember(engine: Engine, server: ServerState, selected: Selected, trained: Sequence[int]) -> None:
    """Let the selection update its state after a round, before the round's number changes.

    Args:
        engine, server: the run.
        selected: the selected clients.
        trained: the clients whose updates count.
    """
    method = selection_of(engine.active(server.round))
    if method is not None:
        record = RoundRecord(server.round, selected.clients, trained)
        server.servers[method.name] = method.update(server.servers[method.name], record)


def _check(method: Selection, selected: Selected, num_clients: int) -> None:
    """Refuse selections of users' own methods that are not clients with probabilities and weights."""
    clients = selected.clients
    wrong = next((client for client in clients if not 0 <= client < num_clients), None)
    if wrong is not None or len(set(clients)) < len(clients):
        fault = "a client twice" if wrong is None else f"client {wrong}"
        raise ValueError(f"{method.name}.select must return each client once, from 0 to {num_clients - 1}; got {fault}")
    for name, values, most in (("probabilities", selected.probabilities, 1.0), ("weights", selected.weights, torch.inf)):
        if values is not None and (
            values.shape != (len(clients),) or not ((values > 0) & (values <= most) & values.isfinite()).all()
        ):
            allowed = "in (0, 1]" if most == 1 else "above 0"
            raise ValueError(f"{method.name}.select must return {len(clients)} {name} {allowed}; got {values.tolist()}")
