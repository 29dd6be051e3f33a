"""Shi et al., 2023, https://arxiv.org/abs/2210.00226, on the scale of the authors' code: pairs of features are visited one by one."""

import copy

import torch
from reference.common import Problem, State, average, shares
from torch import Tensor


def penalty(features: Tensor) -> Tensor:
    rows, width = features.shape
    columns = [column - column.mean() for column in features.unbind(1)]
    columns = [column / torch.sqrt(column.var() + 1e-8) for column in columns]
    total = sum(torch.dot(columns[i], columns[j]) ** 2 for i in range(width) for j in range(width) if i != j)
    return total / (width * (width - 1)) / rows


def run(problem: Problem, beta: float) -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        locals_ = []
        for client in clients:
            local = copy.deepcopy(model).train()
            optimizer = problem.optimizer(local.parameters())
            for inputs, targets in client.batches:
                optimizer.zero_grad()
                features = local.features(inputs)
                loss = problem.loss(local.head(features), targets)
                if len(inputs) > 1:
                    loss = loss + beta * penalty(features)
                loss.backward()
                optimizer.step()
            locals_.append(local)
        model.load_state_dict(average(locals_, shares(clients)))
    return model.state_dict()
