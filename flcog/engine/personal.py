"""Measuring each client's own model on its own held-out part, where a method keeps one."""

import numpy as np
import torch

from flcog.client import ClientModule
from flcog.core.randomness import fold
from flcog.core.types import Params
from flcog.data import Partition
from flcog.engine.batching import make_work
from flcog.engine.executors.base import Assignment
from flcog.engine.executors.loop import LoopExecutor
from flcog.engine.program import ClientTensors, Program
from flcog.engine.rounds import give_slots
from flcog.engine.setup import Engine
from flcog.engine.state import ClientStates, ServerState
from flcog.evaluation import spread
from flcog.hooks import Method


def evaluate_personal(
    engine: Engine, server: ServerState, clients: ClientStates, params: Params, parts: Partition, split: str
) -> dict[str, float]:
    """How the scores of the clients' own models are spread; nothing where no method keeps such models.

    Args:
        engine, server, clients: the run as it stands.
        params: where the global model is evaluated.
        parts: each client's held-out part.
        split: what the figures are called after: ``val`` or ``test``.
    """
    method = next((method for method in engine.methods if method.overrides("personal")), None)
    if method is None:
        return {}
    module = engine.model.module
    assert isinstance(module, ClientModule)
    scores = torch.zeros(parts.num_clients, dtype=torch.float64)
    for client in np.flatnonzero(parts.sizes).tolist():
        if clients.owner.get(client, client % engine.processes.count) == engine.processes.rank:
            own, buffers = personal_model(engine, server, clients, method, params, client)
            scores[client] = engine.evaluator.on_rows(own, buffers, parts.client(client))
    scores = engine.processes.total(scores.to(engine.processes.device)).cpu()
    scores[torch.from_numpy(parts.sizes == 0)] = torch.nan
    return spread(scores, f"{split}/personal_{module.score_name}", lower_is_better=module.task == "regression")


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
