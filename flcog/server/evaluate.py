"""The figures of an evaluation: the global model on the central sets, its spread over clients, and the clients' own models."""

from typing import Literal

import torch

from flcog.client_module import ClientModule
from flcog.core.types import Params
from flcog.data import Samples
from flcog.evaluation import reweighted, spread
from flcog.server.engine import Engine
from flcog.server.personal import evaluate_personal, mean_over_clients, only_personal
from flcog.server.state import ServerState


def evaluated_params(engine: Engine, server: ServerState) -> Params:
    """Where the global model is evaluated: the server's parameters, or what methods put in their place."""
    params = server.params
    for method in engine.active(max(0, server.round - 1)):
        if method.overrides("evaluate_at"):
            params = method.evaluate_at(server.servers[method.name], params)
    return params


def evaluate(engine: Engine, server: ServerState) -> dict[str, float]:
    """The global model on the central sets, and its spread over the clients' own held-out parts.

    Without a central validation set, what clients hold out for validation is one together. Where clients have their own models
    only, the central sets' figures are means over these.
    """
    params, federation = evaluated_params(engine, server), engine.federation
    metrics: dict[str, float] = {}
    alone = only_personal(engine, server)
    sets: dict[Literal["val", "test"], Samples | None] = {"val": federation.val, "test": federation.test}
    for split, samples in sets.items():
        if samples is not None:
            if alone is None:
                figures = engine.evaluator.on_set(params, server.buffers, samples, split=split, round=server.round)
            else:
                figures = mean_over_clients(engine, server, alone, params, samples)
            metrics |= {f"{split}/{name}": value for name, value in figures.items()}
    if federation.val is None and federation.client_val is not None and alone is None:
        figures = engine.evaluator.on_set(params, server.buffers, federation.train, federation.client_val.indices)
        metrics |= {f"val/{name}": value for name, value in figures.items()}
    module = engine.model.module
    if isinstance(module, ClientModule):
        for split, parts in (("val", federation.client_val), ("test", federation.client_test)):
            if parts is not None:
                if alone is None:
                    scores = engine.evaluator.on_clients(params, server.buffers, parts)
                    metrics |= spread(scores, f"{split}/client_{module.score_name}", lower_is_better=module.task == "regression")
                metrics |= evaluate_personal(engine, server, params, parts, split)
        if federation.reweighted_test and federation.test is not None:
            if alone is None:
                classes = engine.evaluator.on_classes(params, server.buffers, federation.test)
                scores = torch.stack([reweighted(classes, federation.label_counts(k)) for k in range(federation.num_clients)])
                metrics |= spread(scores, f"test/client_{module.score_name}", lower_is_better=False)
            metrics |= evaluate_personal(engine, server, params, None, "test")
    return metrics
