"""Evaluate personal models of clients, for methods that keep them."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.messages import Download, Question, Split
from flcog.client_module import ClientModule
from flcog.core.precision import float64_device
from flcog.core.types import Params
from flcog.data import Samples
from flcog.method import Method, Personalisation
from flcog.method.given import broadcast_of
from flcog.metrics import spread
from flcog.server.engine import Engine
from flcog.server.state import ServerState

Asked = tuple[Question, Callable[[Any], dict[str, float]]]
"""A question to the clients, and the figures of its answer."""


def personal_questions(engine: Engine, server: ServerState, params: Params, sizes: Tensor | None, split: Split) -> list[Asked]:
    """The question about the scores of the clients' own models, and their spread; empty if no method keeps such models.

    Args:
        engine, server: the run.
        params: the parameters of the global model for the evaluation.
        sizes: the size of each client's held-out part; None for the test set, whose classes each client weights by its label counts.
        split: the set, which is part of the figures' names.
    """
    method = next((method for method in engine.methods if isinstance(method, Personalisation)), None)
    if method is None:
        return []
    module = engine.model.module
    assert isinstance(module, ClientModule)
    tested = torch.ones(engine.num_clients, dtype=torch.bool) if sizes is None else sizes > 0
    mine = [client for client in tested.nonzero().flatten().tolist() if _is_mine(engine, client)]
    received = _received(engine, server, method, params)

    def figures(found: Sequence[float]) -> dict[str, float]:
        scores = torch.zeros(engine.num_clients, dtype=torch.float64)
        scores[mine] = torch.tensor(found, dtype=torch.float64)
        scores = engine.processes.total(scores.to(float64_device(engine.processes.device))).cpu()
        scores[~tested] = torch.nan
        return spread(scores, f"{split}/personal_{module.score_name}", lower_is_better=module.task == "regression")

    return [(Question("personal_scores", (received, method.name, mine, server.params, split)), figures)]


def only_personal(engine: Engine, server: ServerState) -> Method | None:
    """The method whose personal models are the only ones, because clients send nothing for a global model."""
    acting = engine.active(max(0, server.round - 1))
    return next((method for method in acting if not method.communicates and isinstance(method, Personalisation)), None)


def mean_over_clients(engine: Engine, server: ServerState, method: Method, params: Params, samples: Samples) -> dict[str, float]:
    """Evaluate every client's own model on a central set, and return the mean of each figure over the clients that have it.

    Args:
        engine, server: the run.
        method: the method that keeps the models.
        params: the global model's parameters, which the method may use.
        samples: the central set.
    """
    totals: dict[str, float] = {}
    counts = Counter[str]()
    received = _received(engine, server, method, params)
    for client in range(engine.num_clients):
        # The owner of a model sends it to the other processes, and all of them measure it.
        model = (server.params, server.buffers)
        if _is_mine(engine, client):
            model = engine.clients.personal_model(received, method.name, client, server.params)
        elif engine.processes.count > 1:
            model = pytree.tree_map(torch.zeros_like, model)
        if engine.processes.count > 1:
            model = pytree.tree_map(lambda value: engine.processes.total(value.detach().clone()), model)
        for name, value in engine.evaluator.on_set(*model, samples).items():
            totals[name] = totals.get(name, 0.0) + value
            counts[name] += 1
    return {name: total / counts[name] for name, total in totals.items()}


def _received(engine: Engine, server: ServerState, method: Method, params: Params) -> Download:
    """The broadcast of the evaluated model, with the local optimiser of the last round."""
    last = max(0, server.round - 1)
    broadcasts = {method.name: broadcast_of(method, server.servers[method.name])}
    rates, optimisation = engine.rates(last, server.rates), engine.optimisation(last, server.rates)
    return Download(server.round, engine.seed, params, server.buffers, broadcasts, rates, optimisation)


def _is_mine(engine: Engine, client: int) -> bool:
    """Whether this process has the client's state. A client without a state belongs to the process of its number."""
    if engine.processes.count == 1:
        return True
    return engine.clients.store.owner.get(client, client % engine.processes.count) == engine.processes.rank
