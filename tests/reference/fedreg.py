"""Xu et al., 2022, https://arxiv.org/abs/2203.02645, after the authors' code, with the samples' weights and a clamp that works.

The two subtractions follow one another on the flat vector of all parameters.
"""

import copy

import torch
import torch.nn.functional as F
from reference.common import Problem, State, averaged
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def attack(model: nn.Module, inputs: Tensor, targets: Tensor, eta: float, steps: int) -> Tensor:
    moved = inputs.clone()
    for _ in range(steps):
        moved.requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(model(moved), targets), moved)
        moved = torch.clamp(moved.detach() + eta * torch.sign(slope), inputs.min().item(), inputs.max().item())
    return moved


def flat_gradient(model: nn.Module, point: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    there = copy.deepcopy(model)
    vector_to_parameters(point, there.parameters())
    return parameters_to_vector(torch.autograd.grad(F.cross_entropy(there(inputs), targets), list(there.parameters())))


def run(problem: Problem, gamma: float, eta_s: float, eta_p: float, steps: int) -> State:
    def one(problem, model, client):
        x, local = parameters_to_vector(model.parameters()).detach(), copy.deepcopy(model)
        optimizer = problem.optimizer(local.parameters())
        for inputs, targets in client.batches:
            y = parameters_to_vector(local.parameters()).detach()
            g1 = flat_gradient(model, gamma * y + (1 - gamma) * x, inputs, targets)
            for p, part in zip(local.parameters(), g1.split([p.numel() for p in local.parameters()]), strict=True):
                p.grad = part.view_as(p)
            optimizer.step()
            y = parameters_to_vector(local.parameters()).detach()
            pseudo, perturbed = (attack(model, inputs, targets, eta, steps) for eta in (eta_s, eta_p))
            soft = model(pseudo).softmax(1).detach()
            g2 = flat_gradient(model, (x + y) / 2, pseudo, soft)
            g3 = flat_gradient(model, (x + y) / 2, perturbed, targets)
            w2 = max(0.0, float((y - x) @ g2 / (g2 @ g2)))
            w3 = max(0.0, float((y - x - w2 * g2) @ g3 / (g3 @ g3)))
            vector_to_parameters(y - w2 * g2 - w3 * g3, local.parameters())
        return local

    return averaged(problem, one)
