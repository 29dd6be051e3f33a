"""Evaluate the global model on the central sets and on the clients' data, and evaluate the clients' own models."""

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.messages import Download, Question, Scores, Split
from flcog.client_module import ClientModule
from flcog.core import checks
from flcog.core.precision import float64_device
from flcog.core.trees import containers_copied
from flcog.core.types import Params
from flcog.data import Samples
from flcog.method import Attack, Method, Personalisation, method_of
from flcog.method.returned import broadcast_of, check_params
from flcog.metrics import spread
from flcog.server.engine import Engine
from flcog.server.state import ServerState

Asked = tuple[Question, Callable[[Any], dict[str, float]]]
"""A question to the clients, and the figures of its answer."""


def evaluated_params(engine: Engine, server: ServerState) -> Params:
    """The parameters for the evaluation: the server's parameters, unless methods replace them.

    The server keeps them until its state changes, for the checkpoint and the user's module, which contain them, too.
    """
    if server.evaluated and all(map(operator.is_, server.evaluated[0], server.parts)):
        return server.evaluated[1]
    params = server.params
    for method in engine.active(max(0, server.round - 1)):
        if method.overrides("evaluate_at"):
            state = containers_copied(server.servers[method.name])
            shared = {name: value for name, value in params.items() if name not in engine.local}
            new = method.evaluate_at(state, dict(shared))
            params = params | check_params(method, "evaluate_at", new, shared)
    server.keep_evaluated(params)
    return params


SPLITS: tuple[Split, ...] = ("val", "test")


def evaluate(engine: Engine, server: ServerState, splits: Sequence[Split] = SPLITS) -> dict[str, float]:
    """Evaluate the global model on the central sets of these splits, and its spread over the clients' held-out parts.

    Without a central validation set, the clients' held-out validation parts are used as one set. If there are only personal models,
    the figures on the central sets are means over these models.
    """
    params, central = evaluated_params(engine, server), engine.central
    found: dict[Split, dict[str, float]] = {}
    alone = only_personal(engine, server)
    for split in reversed(splits):  # callbacks of Lightning's follow the validation, and may follow a figure of the test set
        samples = central[split]
        if samples is not None:
            if alone is None:
                found[split] = engine.evaluator.on_set(params, server.buffers, samples, split=split, lasting=True)
            else:
                found[split] = mean_over_clients(engine, server, samples)
    metrics = {f"{split}/{name}": value for split in splits for name, value in found.get(split, {}).items()}
    asked = _questions(engine, server, params, splits)
    for (_, figures_of), answer in zip(asked, engine.clients.ask([question for question, _ in asked]), strict=True):
        metrics |= figures_of(answer)
    return metrics


def _questions(engine: Engine, server: ServerState, params: Params, splits: Sequence[Split]) -> list[Asked]:
    """All questions to the clients, each with the function that turns its answer into figures."""
    module, roll_call, central = engine.model.module, engine.roll_call, engine.central
    alone, asked = only_personal(engine, server), list[Asked]()
    if "val" in splits and central["val"] is None and roll_call.val is not None and alone is None:
        together = Question("evaluate", (params, server.buffers, "val", True, None))
        asked.append((together, lambda answer: {f"val/{name}": value for name, value in answer.figures.items()}))
    if not isinstance(module, ClientModule):
        return asked
    parts: dict[Split, Tensor | None] = {"val": roll_call.val, "test": roll_call.test}
    for split in splits:
        sizes = parts[split]
        if sizes is not None:
            if alone is None:
                question = Question("evaluate", (params, server.buffers, split, False, None))
                asked.append((question, partial(_spread, engine, server, f"{split}/client", sizes)))
            asked += personal_questions(engine, server, params, sizes, split)
    if "test" in splits and engine.reweighted_test and central["test"] is not None:
        if alone is None:
            classes = engine.evaluator.on_classes(params, server.buffers, central["test"])
            question = Question("evaluate", ({}, {}, "test", False, classes))
            asked.append((question, partial(_spread, engine, server, "test/client", None)))
        asked += personal_questions(engine, server, params, None, "test")
    return asked


def _spread(engine: Engine, server: ServerState, of: str, sizes: Tensor | None, found: Scores) -> dict[str, float]:
    """Keep the clients' scores for their rows, and return the spread of all but attackers', also weighted by their held-out samples."""
    module = engine.model.module
    assert isinstance(module, ClientModule)
    server.scores[f"{of}_{module.score_name}"] = found.clients
    attacks = [method.attackers(engine.seed, engine.num_clients) for method in engine.methods if isinstance(method, Attack)]
    honest = found.clients.index_fill(0, torch.tensor([*frozenset().union(*attacks)], dtype=torch.int64), torch.nan)
    return spread(honest, f"{of}_{module.score_name}", lower_is_better=module.task == "regression", sizes=sizes)


def personal_questions(engine: Engine, server: ServerState, params: Params, sizes: Tensor | None, split: Split) -> list[Asked]:
    """The question about the scores of the clients' own models, and their spread; empty if no method keeps such models.

    ``sizes`` are those of the clients' held-out parts; None stands for the test set, whose classes each client weights by its label
    counts.
    """
    method = method_of(engine.methods, Personalisation)
    if method is None:
        return []
    tested = torch.ones(engine.num_clients, dtype=torch.bool) if sizes is None else sizes > 0
    mine = [client for client in tested.nonzero().flatten().tolist() if _is_mine(engine, client)]
    received = _received(engine, server, method, params)

    def figures(found: Sequence[float]) -> dict[str, float]:
        scores = torch.zeros(engine.num_clients, dtype=torch.float64)
        scores[mine] = torch.tensor(found, dtype=torch.float64)
        scores = engine.processes.total(scores.to(float64_device(engine.processes.device))).cpu()
        scores[~tested] = torch.nan
        return _spread(engine, server, f"{split}/personal", sizes, Scores(scores))

    return [(Question("personal_scores", (received, method.name, mine, server.params, split)), figures)]


def only_personal(engine: Engine, server: ServerState) -> Method | None:
    """The method whose personal models are the only ones, because clients send nothing for a global model."""
    acting = engine.active(max(0, server.round - 1))
    return next((method for method in acting if not method.communicates and isinstance(method, Personalisation)), None)


def personal_model(engine: Engine, server: ServerState, client: int) -> tuple[Params, Params]:
    """The parameters and buffers of a client's own model, which its owner sends to the other processes."""
    method = method_of(engine.methods, Personalisation)
    if method is None:
        raise ValueError(f"client={client} asks for a client's own model, and no method of this run keeps any: leave it out")
    checks.within(None, f"[0, {engine.num_clients - 1}]", client=client)
    model = (server.params, server.buffers)
    if _is_mine(engine, client):
        received = _received(engine, server, method, evaluated_params(engine, server))
        model = engine.clients.personal_model(received, method.name, client, server.params)
    elif engine.processes.count > 1:
        model = pytree.tree_map(torch.zeros_like, model)
    if engine.processes.count > 1:
        model = pytree.tree_map(lambda value: engine.processes.total(value.detach().clone()), model)
    return model


def mean_over_clients(engine: Engine, server: ServerState, samples: Samples) -> dict[str, float]:
    """Evaluate every client's own model on a central set, and return the mean of each figure over the clients that have it."""
    totals: dict[str, float] = {}
    counts = Counter[str]()
    for client in range(engine.num_clients):
        for name, value in engine.evaluator.on_set(*personal_model(engine, server, client), samples).items():
            totals[name] = totals.get(name, 0.0) + value
            counts[name] += 1
    return {name: total / counts[name] for name, total in totals.items()}


def _received(engine: Engine, server: ServerState, method: Method, params: Params) -> Download:
    """The broadcast of the evaluated model, with the local optimiser of the last round."""
    last = max(0, server.round - 1)
    broadcasts = {method.name: broadcast_of(method, server.servers[method.name])}
    return Download(server.round, engine.seed, params, server.buffers, broadcasts, *engine.local_optimiser(last, server.rates))


def _is_mine(engine: Engine, client: int) -> bool:
    """Whether this process has the client's state. A client without a state belongs to the process of its number."""
    if engine.processes.count == 1:
        return True
    return engine.clients.store.owner.get(client, client % engine.processes.count) == engine.processes.rank
