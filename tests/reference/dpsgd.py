"""Federated averaging whose clients clip the gradient of each sample, in a loop over samples, without noise."""

from functools import partial

import torch
from reference.common import Problem, State, averaged, train


def run(problem: Problem, clip: float) -> State:
    def backward(local, inputs, targets):
        totals = [torch.zeros_like(value) for value in local.parameters()]
        for j in range(len(inputs)):
            loss = problem.loss(local(inputs[j : j + 1]), targets[j : j + 1])
            gradient = torch.autograd.grad(loss, list(local.parameters()))
            norm = torch.cat([value.flatten() for value in gradient]).norm()
            for total, value in zip(totals, gradient, strict=True):
                total += value * min(1.0, clip / float(norm))
        for value, total in zip(local.parameters(), totals, strict=True):
            value.grad = total / len(inputs)

    return averaged(problem, partial(train, backward=backward))
