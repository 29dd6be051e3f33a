"""Ye et al., 2024, https://arxiv.org/abs/2312.05966, algorithm 1, with given draws: ``draws(round, client) -> (noise, labels)``."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from reference.common import Problem, State, average, shares, train
from torch import Tensor, nn


def probabilities(logits: Tensor, multilabel: bool) -> Tensor:
    """One distribution per row: over the classes or, for multilabel data, over the presence and absence of a label."""
    if not multilabel:
        return logits.softmax(1)
    return torch.stack([logits.sigmoid(), 1 - logits.sigmoid()], -1).flatten(0, 1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    return F.kl_div(q.log(), p, reduction="batchmean")


def task_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels) if labels.ndim == 1 else F.binary_cross_entropy_with_logits(logits, labels)


def generate(
    received: nn.Module,
    last: nn.Module | None,
    noise: Tensor,
    labels: Tensor,
    steps: int,
    lambda_dis: float,
    lr: float,
    betas: tuple[float, float],
    divergence: str,
) -> Tensor:
    """Generates inputs by equations 1 and 2, or with the divergence of the authors' code."""
    inputs = noise.clone().requires_grad_()
    optimizer = torch.optim.Adam([inputs], lr, betas)
    for _ in range(steps):
        logits = received(inputs)
        loss = task_loss(logits, labels)
        if last is not None:
            p, q = (probabilities(values, labels.ndim == 2) for values in (logits, last(inputs)))
            mean = (p + q) / 2
            if divergence == "code":
                p, q, mean = (value.clamp(0.01, 0.99) for value in (p, q, mean))
                loss = loss + lambda_dis * (1 - (0.5 * kl(mean, p) + 0.5 * kl(mean, q)).clamp(0, 1))
            else:
                loss = loss + lambda_dis * (1 - 0.5 * (kl(p, mean) + kl(q, mean)))
        (inputs.grad,) = torch.autograd.grad(loss, [inputs])
        optimizer.step()
    return inputs.detach()


def run(
    problem: Problem,
    draws: Callable[[int, int], tuple[Tensor, Tensor]],
    steps: int,
    lambda_dis: float,
    lambda_kd: float | str,
    lr: float,
    batch_size: int,
    start: int = 0,
    betas: tuple[float, float] = (0.5, 0.9),
    divergence: str = "paper",
    hard: bool = False,
    distils: bool = True,
) -> State:
    model, last = copy.deepcopy(problem.model), {}
    for number, clients in enumerate(problem.rounds):
        locals_ = []
        for client in clients:
            if number < start:
                local = train(problem, model, client)
            else:
                noise, labels = draws(number, client.id)
                received = copy.deepcopy(model).eval()
                inputs = generate(received, last.get(client.id), noise, labels, steps, lambda_dis, lr, betas, divergence)
                taught = probabilities(received(inputs), labels.ndim == 2).detach()
                on_task, on_generated = 1.0, lambda_kd
                if lambda_kd == "balance":
                    counts = client.labels.bincount() if client.labels.ndim == 1 else client.labels.sum(0)
                    real, lacking = float(counts.sum()), float((counts.max() - counts).sum())
                    on_task, on_generated = real / (real + lacking), lacking / (real + lacking)
                passed = itertools.count()

                def distil(local, inputs=inputs, labels=labels, taught=taught, passed=passed, weight=on_generated):
                    first, count = next(passed) * batch_size, len(labels)
                    rows = [i % count for i in range(first, first + min(batch_size, count))]
                    logits = local(inputs[rows])
                    if hard:
                        return weight * task_loss(logits, labels[rows])
                    own = probabilities(logits, labels.ndim == 2)
                    return weight * kl(taught.view(count, -1, own.shape[1])[rows].flatten(0, 1), own)

                weighted = replace(problem, loss=lambda out, y, w=on_task: w * problem.loss(out, y))
                local = train(weighted, model, client, penalty=distil if distils else None)
            last[client.id] = copy.deepcopy(local).eval()
            locals_.append(local)
        model.load_state_dict(average(locals_, shares(clients)))
    return model.state_dict()
