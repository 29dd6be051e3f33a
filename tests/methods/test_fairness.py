"""q-FFL and AFL against their papers."""

import copy
from functools import partial

import pytest
import torch
from contracts.case import Case
from harness import assert_close, train
from reference.common import Client, Problem, State, mean_update, move, parameters
from reference.common import train as train_client
from torch import Tensor, nn

from flcog.callbacks import AFL, QFFL, EqualWeights
from flcog.callbacks.fairness import on_simplex

pytestmark = pytest.mark.filterwarnings("error")

ALL = {"local_epochs": 1.0}
"""Each sample is in one batch of a round, so that the batches together are the client's data."""


def loss_on_all(problem: Problem, model: nn.Module, client: Client) -> Tensor:
    inputs, targets = (torch.cat(parts) for parts in zip(*client.batches, strict=True))
    with torch.no_grad():
        return problem.loss(model(inputs), targets)


def qffl(problem: Problem, q: float) -> State:
    model, scale = copy.deepcopy(problem.model), 1 / problem.lr
    for clients in problem.rounds:
        before, step, norm = parameters(model), dict.fromkeys(parameters(model), 0), 0
        for client in clients:
            loss = loss_on_all(problem, model, client)
            end = parameters(train_client(problem, model, client))
            gradient = {name: scale * (before[name] - end[name]) for name in before}
            step = {name: step[name] + loss**q * value for name, value in gradient.items()}
            norm += q * loss ** (q - 1) * sum(value.square().sum() for value in gradient.values()) + scale * loss**q
        move(model, {name: -value / norm for name, value in step.items()})
    return model.state_dict()


def afl(problem: Problem, lr: float) -> State:
    model, weights = copy.deepcopy(problem.model), torch.full((problem.num_clients,), 1 / problem.num_clients).double()
    for clients in problem.rounds:
        own = weights[[client.id for client in clients]]
        losses = [loss_on_all(problem, model, client) for client in clients]
        locals_ = [train_client(problem, model, client) for client in clients]
        move(model, mean_update(model, locals_, (own / own.sum()).tolist()))
        for client, loss in zip(clients, losses, strict=True):
            weights[client.id] += lr * loss
        # The projection by bisection: the threshold at which the positive parts sum to 1.
        low, high = weights.min() - 1, weights.max()
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if (weights - middle).clamp(min=0).sum() > 1 else (low, middle)
        weights = (weights - low).clamp(min=0)
    return model.state_dict()


CASES: dict[str, Case] = {
    "QFFL": Case(QFFL(q=2.0), partial(qffl, q=2.0), options=ALL),
    "AFL": Case(AFL(lr=0.2), partial(afl, lr=0.2), options=ALL),
}


def test_without_fairness_clients_count_equally() -> None:
    expected = train(EqualWeights()).state
    assert_close(train(QFFL(q=0.0)).state, expected, 1e-12)


def test_the_projection_is_the_nearest_point() -> None:
    torch.manual_seed(0)
    for _ in range(20):
        values, others = torch.randn(6).double(), torch.rand(500, 6).double()
        found = on_simplex(values)
        assert float(found.sum()) == pytest.approx(1) and float(found.min()) >= 0
        others = others / others.sum(1, keepdim=True)
        assert float((found - values).norm()) <= float((others - values).norm(dim=1).min())
