"""Shi et al., 2023, https://arxiv.org/abs/2210.00226, on the scale of the authors' code: pairs of features are visited one by one."""

from functools import partial

import torch
from reference.common import Problem, State, averaged, train
from torch import Tensor


def penalty(features: Tensor) -> Tensor:
    rows, width = features.shape
    columns = [column - column.mean() for column in features.unbind(1)]
    columns = [column / torch.sqrt(column.var() + 1e-8) for column in columns]
    total = sum(torch.dot(columns[i], columns[j]) ** 2 for i in range(width) for j in range(width) if i != j)
    return total / (width * (width - 1)) / rows


def run(problem: Problem, beta: float) -> State:
    def backward(local, inputs, targets):
        features = local.features(inputs)
        loss = problem.loss(local.head(features), targets)
        if len(inputs) > 1:
            loss = loss + beta * penalty(features)
        loss.backward()

    return averaged(problem, partial(train, backward=backward))
