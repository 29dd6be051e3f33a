"""Ye et al., 2023, https://arxiv.org/abs/2305.19229, equation 3, with the authors' normalisation of the KL divergence; in numpy."""

import copy
from typing import Any

import numpy as np
from reference.common import Client, Problem, State, average, train


def distance(shares: np.ndarray, target: np.ndarray, metric: str) -> float:
    if metric == "kl":
        return sum(s * np.log(s / t) for s, t in zip(shares, target, strict=True) if s > 0)
    if metric == "l1":
        return np.abs(shares - target).sum()
    if metric == "l2":
        return np.sqrt(((shares - target) ** 2).sum())
    return 1 - shares @ target / np.sqrt((shares @ shares) * (target @ target))


def weights(clients: list[Client], a: float, b: float, target: list[float], metric: str = "kl") -> list[float]:
    goal = np.array(target) / np.sum(target)
    n = np.array([client.num_samples for client in clients], dtype=float)
    labels = [np.bincount(client.labels.numpy(), minlength=len(goal)) for client in clients]
    d = np.array([distance(counts / counts.sum(), goal, metric) for counts in labels])
    if metric == "kl":
        d = d / d.sum()
    p = np.maximum(n / n.sum() - a * d + b, 0)
    return list(p / p.sum())


def run(problem: Problem, **options: Any) -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        model.load_state_dict(average([train(problem, model, client) for client in clients], weights(clients, **options)))
    return model.state_dict()
