"""Measuring each client's own model, where a method keeps one: on the client's own held-out part, or on a central set."""

import numpy as np
import torch
from torch.utils import _pytree as pytree

from flcog.client import ClientModule
from flcog.core.precision import float64_device
from flcog.core.randomness import fold
from flcog.core.types import Params
from flcog.data import Partition, Samples
from flcog.engine.batching import make_work
from flcog.engine.executors.base import Assignment
from flcog.engine.executors.loop import LoopExecutor
from flcog.engine.program import ClientTensors, Program
from flcog.engine.rounds import give_slots
from flcog.engine.setup import Engine
from flcog.engine.state import ClientStates, ServerState
from flcog.evaluation import reweighted, spread
from flcog.method import Method


def evaluate_personal(
    engine: Engine, server: ServerState, clients: ClientStates, params: Params, parts: Partition | None, split: str
) -> dict[str, float]:
    """How the scores of the clients' own models are spread; nothing where no method keeps such models.

    Args:
        engine, server, clients: the run as it stands.
        params: where the global model is evaluated.
        parts: each client's held-out part; None for the test set, its classes weighted by the client's.
        split: what the figures are called after: ``val`` or ``test``.
    """
    method = next((method for method in engine.methods if method.overrides("personal")), None)
    if method is None:
        return {}
    module = engine.model.module
    assert isinstance(module, ClientModule)
    num_clients = engine.federation.num_clients
    tested = np.ones(num_clients, dtype=bool) if parts is None else parts.sizes > 0
    scores = torch.zeros(num_clients, dtype=torch.float64)
    for client in np.flatnonzero(tested).tolist():
        if _is_mine(engine, clients, client):
            own, buffers = personal_model(engine, server, clients, method, params, client)
            scores[client] = _score(engine, own, buffers, client, parts)
    scores = engine.processes.total(scores.to(float64_device(engine.processes.device))).cpu()
    scores[torch.from_numpy(~tested)] = torch.nan
    return spread(scores, f"{split}/personal_{module.score_name}", lower_is_better=module.task == "regression")


def _score(engine: Engine, params: Params, buffers: Params, client: int, parts: Partition | None) -> float:
    """A client's own model on what is the client's, as ``evaluate_personal`` has it."""
    if parts is not None:
        return engine.evaluator.on_rows(params, buffers, parts.client(client))
    assert engine.federation.test is not None
    classes = engine.evaluator.on_classes(params, buffers, engine.federation.test, alone=True)
    return float(reweighted(classes, engine.federation.label_counts(client)))


def only_personal(engine: Engine, server: ServerState) -> Method | None:
    """The method whose personal models are all there is, since nothing is sent to make a global one of."""
    acting = engine.active(max(0, server.round - 1))
    return next((method for method in acting if not method.communicates and method.overrides("personal")), None)


def mean_over_clients(
    engine: Engine, server: ServerState, clients: ClientStates, method: Method, params: Params, samples: Samples
) -> dict[str, float]:
    """The figures of every client's own model on a central set, their mean over the clients.

    Args:
        engine, server, clients: the run as it stands.
        method: which keeps the models.
        params: the global model's, for what it does with them.
        samples: the set.
    """
    totals: dict[str, float] = {}
    for client in range(engine.federation.num_clients):
        # All processes measure each model, of which its owner tells the others.
        model = (server.params, server.buffers)
        if _is_mine(engine, clients, client):
            model = personal_model(engine, server, clients, method, params, client)
        elif engine.processes.count > 1:
            model = pytree.tree_map(torch.zeros_like, model)
        if engine.processes.count > 1:
            model = pytree.tree_map(lambda value: engine.processes.total(value.detach().clone()), model)
        for name, value in engine.evaluator.on_set(*model, samples).items():
            totals[name] = totals.get(name, 0.0) + value
    return {name: total / engine.federation.num_clients for name, total in totals.items()}


def _is_mine(engine: Engine, clients: ClientStates, client: int) -> bool:
    """Whether this process has the client's state; one that has none yet is dealt to some process."""
    return clients.owner.get(client, client % engine.processes.count) == engine.processes.rank


def personal_model(
    engine: Engine, server: ServerState, clients: ClientStates, method: Method, params: Params, client: int
) -> tuple[Params, Params]:
    """One client's own parameters and buffers, after the steps of fine-tuning that the method asks for."""
    seed, round = fold(engine.seed, "personal"), max(0, server.round - 1)
    optimisation, buffers = engine.optimisation(round), server.buffers
    work = make_work(engine.federation, engine.batching, [client], [1], [1.0], seed, server.round)[0]
    give_slots(engine, server, clients, [method], [work], server.round)
    broadcasts = [method.broadcast(server.servers[method.name])]
    program = Program(engine.model, [method], broadcasts, params, buffers, optimisation)
    tensors = ClientTensors(work.slots, work.draws, [{}], work.num_steps, work.num_samples, 1.0)
    own, steps, own_statistics = method.personal(params, program.contexts(tensors, buffers, 0)[0])
    if steps:
        work = make_work(engine.federation, engine.batching, [client], [steps], [1.0], seed, server.round)[0]
        tuning = Program(engine.model, [], [], own, buffers, optimisation)
        assignment = Assignment(tuning, [work], engine.reader, engine.rates(round), seed, server.round)
        result = next(LoopExecutor(engine.model, engine.optimizer).run(assignment))
        assert result.delta is not None
        own = {name: value + result.delta[name][0] for name, value in own.items()}
        buffers = {name: value[0].clone() for name, value in result.buffers.items()}
    elif own_statistics and engine.model.mixes_rows:
        buffers = engine.evaluator.statistics(own, buffers, work.own)
    return own, buffers
