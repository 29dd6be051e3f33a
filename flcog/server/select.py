"""Select the clients of a round, and let the selection remember the round."""

from collections.abc import Collection, Mapping, Sequence

import torch

from flcog.client.messages import Received
from flcog.client_module import ClientModule
from flcog.core.precision import float64_device
from flcog.core.randomness import fold, make_rng
from flcog.method import AvailabilityModel, ClientPool, RoundRecord, Selected, Selection, clock_of, expected_cohort, selection_of
from flcog.server.engine import Engine
from flcog.server.round_plan import Timing
from flcog.server.state import ServerState
from flcog.wire.envelope import num_bytes
from flcog.wire.ledger import model_bytes


def select(engine: Engine, server: ServerState) -> Selected:
    """Select the clients of the coming round."""
    asked: list[int] = []

    def ask(clients: Sequence[int]) -> list[float]:
        asked.extend(clients)
        return _losses(engine, server, clients)

    methods = engine.active(server.round)
    present = next((method for method in methods if isinstance(method, AvailabilityModel)), None)
    if present is not None:
        moment = server.seconds if clock_of(methods) else server.round * present.seconds_per_round
    population = ClientPool(
        round=server.round,
        sizes=engine.roll_call.sizes,
        num_samples=engine.population.num_samples,
        key=fold(engine.seed, server.round, "cohort"),
        availability=None if present is None else lambda clients: present.available(clients, moment, engine.seed),
        sample_ends=lambda: engine.sample_ends,
        ask=ask,
    )
    method, count = selection_of(methods), min(expected_cohort(methods, engine.cohort_size), engine.num_clients)
    if method is None:
        return Selected(population.draw(count))
    rng = make_rng(engine.seed, server.round, "selection", method.name)
    selected = method.select(server.servers[method.name], population, count, rng)
    _check(method, selected, engine.num_clients)
    return selected._replace(asked=asked)


def charge(engine: Engine, server: ServerState, selected: Selected, trains: Collection[int]) -> None:
    """Count the bytes of the clients that reported their losses for the selection. Clients that train download the model once.

    Args:
        engine, server: the run.
        selected: the selected clients.
        trains: the clients that train in this round, whose download the round counts.
    """
    if selected.asked:
        method = selection_of(engine.active(server.round))
        assert method is not None
        others = sum(client not in trains for client in selected.asked)
        down = others * model_bytes(server.params, server.buffers)
        server.ledger.add(method.name, up=len(selected.asked) * num_bytes(0.0), down=down)


def remember(
    engine: Engine,
    server: ServerState,
    selected: Selected,
    trained: Sequence[int],
    losses: Mapping[int, float],
    timing: Timing | None = None,
) -> None:
    """Let the selection update its state after a round, before the round's number changes.

    Args:
        engine, server: the run.
        selected: the selected clients.
        trained: the clients whose updates count.
        losses: their training losses; empty if the selection does not read them.
        timing: the simulated time of the round, if the run has a clock.
    """
    method = selection_of(engine.active(server.round))
    if method is not None:
        known = [losses[client] for client in trained] if losses else []
        record = RoundRecord(server.round, selected.clients, trained, known, timing.finishes if timing else {})
        server.servers[method.name] = method.update(server.servers[method.name], record)


def _losses(engine: Engine, server: ServerState, clients: Sequence[int]) -> list[float]:
    """The loss of the global model on each client's data. The processes share the clients."""
    if not isinstance(engine.model.module, ClientModule):
        kind = type(engine.model.module).__name__
        raise ValueError(f"a selection by loss needs a flcog.ClientModule, which has per_example_loss; got {kind}")
    round, processes = server.round, engine.processes
    received = Received(round, engine.seed, server.params, server.buffers, {}, engine.rates(round), engine.optimisation(round))
    found = torch.zeros(len(clients), dtype=torch.float64)
    mine = slice(processes.rank, None, processes.count)
    found[mine] = torch.tensor(engine.clients.losses(received, clients[mine]), dtype=torch.float64)
    losses: list[float] = processes.total(found.to(float64_device(processes.device))).tolist()
    return losses


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
