"""Caldarola et al., 2022, https://arxiv.org/abs/2203.11834: SAM and ASAM as the local optimiser of FedAvg.

Each step perturbs the parameters in place, takes the gradient there, puts the saved parameters back and steps.
"""

from functools import partial

import torch
from reference.common import Problem, State, averaged, train


def run(problem: Problem, rho: float, adaptive: bool = False, eta: float = 0.0) -> State:
    def backward(local, inputs, targets):
        problem.loss(local(inputs), targets).backward()
        with torch.no_grad():
            saved = [p.clone() for p in local.parameters()]
            t = [p.abs() + eta if adaptive else torch.ones_like(p) for p in saved]
            norm = torch.cat([(s * p.grad).flatten() for s, p in zip(t, local.parameters(), strict=True)]).norm()
            for s, p in zip(t, local.parameters(), strict=True):
                p.add_(rho * s**2 * p.grad / norm)
        local.zero_grad()
        problem.loss(local(inputs), targets).backward()
        with torch.no_grad():
            for p, old in zip(local.parameters(), saved, strict=True):
                p.copy_(old)

    return averaged(problem, partial(train, backward=backward))
