"""Evaluate the global model on the central sets and on the clients' data, and evaluate the clients' own models."""

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from flcog.client.messages import Question, Scores, Split
from flcog.client_module import ClientModule
from flcog.core.trees import containers_copied, leaves
from flcog.core.types import Params
from flcog.data import Samples
from flcog.method.finite import check_finite
from flcog.method.given import model_stays
from flcog.method.returned import check_params
from flcog.metrics import spread
from flcog.server.engine import Engine
from flcog.server.personal import Asked, mean_over_clients, only_personal, personal_questions
from flcog.server.state import ServerState


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
            with model_stays(method, "evaluate_at", params, server=state):
                new = method.evaluate_at(state, dict(params))
            params = check_finite(method, "evaluate_at", check_params(method, "evaluate_at", new, params), params)
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
            with _naming_unlike_inputs(engine, split, samples):
                if alone is None:
                    found[split] = engine.evaluator.on_set(params, server.buffers, samples, split=split, lasting=True)
                else:
                    found[split] = mean_over_clients(engine, server, alone, params, samples)
    metrics = {f"{split}/{name}": value for split in splits for name, value in found.get(split, {}).items()}
    asked = _questions(engine, server, params, splits)
    for (_, figures_of), answer in zip(asked, engine.clients.ask([question for question, _ in asked]), strict=True):
        metrics |= figures_of(answer)
    return metrics


@contextmanager
def _naming_unlike_inputs(engine: Engine, split: Split, samples: Samples) -> Iterator[None]:
    """Tell of an error that the set's stored inputs have another shape or type than the training set's, if they have."""
    try:
        yield
    except Exception as error:
        ours, theirs = _form(samples), _form(engine.evaluator.federation.train)
        if ours == theirs or not (ours and theirs):
            raise
        first = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"the {split} set has inputs {ours}, and the training set {theirs}: give both the same form ({first})"
        ) from error


def _form(samples: Samples) -> str:
    """The shape and type of a sample's stored inputs; empty for inputs that are made when they are read."""
    if not samples.stored:
        return ""
    return ", ".join(f"{list(leaf.shape[1:])} ({str(leaf.dtype).removeprefix('torch.')})" for leaf in leaves(samples.inputs))


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
                asked.append((question, partial(_spread, module, split, module.task == "regression")))
            asked += personal_questions(engine, server, params, sizes, split)
    if "test" in splits and engine.reweighted_test and central["test"] is not None:
        if alone is None:
            classes = engine.evaluator.on_classes(params, server.buffers, central["test"])
            asked.append((Question("evaluate", ({}, {}, "test", False, classes)), partial(_spread, module, "test", False)))
        asked += personal_questions(engine, server, params, None, "test")
    return asked


def _spread(module: ClientModule, split: Split, lower_is_better: bool, scores: Scores) -> dict[str, float]:
    return spread(scores.clients, f"{split}/client_{module.score_name}", lower_is_better=lower_is_better)
