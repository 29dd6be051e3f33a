"""Robust rules and pre-aggregations in numpy, from their papers, and FedAvg with a rule in the place of the mean.

A rule takes the clients' changes as rows, their weights, and the last aggregate. A pre-aggregation takes and returns rows and weights.
"""

import copy
from functools import partial

import numpy as np
import torch
from reference.common import Problem, State, shares, train


def mean(rows, weights, last=None):
    return np.average(rows, 0, weights)


def median(rows, weights, last=None):
    """Half of the weight on each side, number by number; the middle between two values on a tie."""
    result = np.empty(rows.shape[1])
    for column, values in enumerate(rows.T):
        below = [sum(w for v, w in zip(values, weights, strict=True) if v < x) for x in values]
        above = [sum(w for v, w in zip(values, weights, strict=True) if v > x) for x in values]
        fits = [
            x
            for x, b, a in zip(values, below, above, strict=True)
            if b <= sum(weights) / 2 + 1e-12 and a <= sum(weights) / 2 + 1e-12
        ]
        result[column] = (min(fits) + max(fits)) / 2
    return result


def trimmed_mean(rows, weights, last=None, f=1):
    result = np.empty(rows.shape[1])
    for column, values in enumerate(rows.T):
        kept = sorted(range(len(values)), key=lambda k: values[k])[f : len(values) - f]
        result[column] = np.average(values[kept], weights=weights[kept])
    return result


def krum_scores(rows, f, power=2):
    scores = []
    for i in range(len(rows)):
        others = sorted(np.linalg.norm(rows[i] - rows[j]) ** power for j in range(len(rows)) if j != i)
        scores.append(sum(others[: max(1, len(rows) - f - 2)]))
    return scores


def krum(rows, weights, last=None, f=1, power=2):
    return rows[int(np.argmin(krum_scores(rows, f, power)))]


def multi_krum(rows, weights, last=None, f=1, keep=None):
    kept = np.argsort(krum_scores(rows, f), kind="stable")[: keep or len(rows) - f]
    return np.average(rows[kept], 0, weights[kept])


def bulyan(rows, weights, last=None, f=1):
    left, chosen = list(range(len(rows))), []
    while len(chosen) < len(rows) - 2 * f:
        best = left[int(np.argmin(krum_scores(rows[left], f)))] if len(left) > 1 else left[0]
        chosen.append(best)
        left.remove(best)
    chosen.sort()
    result = np.empty(rows.shape[1])
    for column in range(rows.shape[1]):
        values = rows[chosen, column]
        near = sorted(range(len(chosen)), key=lambda k: abs(values[k] - np.median(values)))[: len(rows) - 4 * f]
        result[column] = np.average(values[near], weights=weights[np.array(chosen)[near]])
    return result


def geometric_median(rows, weights, last=None, steps=8, nu=0.1):
    z = np.zeros(rows.shape[1])
    for _ in range(steps):
        b = [w / max(nu, np.linalg.norm(z - row)) for w, row in zip(weights, rows, strict=True)]
        z = sum(v * row for v, row in zip(b, rows, strict=True)) / sum(b)
    return z


def clip(row, norm):
    length = np.linalg.norm(row)
    return row * min(1, norm / length) if length else row


def centered_clipping(rows, weights, last=None, radius=10.0, steps=3):
    v = np.zeros(rows.shape[1]) if last is None else last
    for _ in range(steps):
        v = v + sum(w * clip(row - v, radius) for w, row in zip(weights, rows, strict=True))
    return v


def norm_bound(rows, weights, last=None, norm=1.0):
    return mean(np.stack([clip(row, norm) for row in rows]), weights)


def bucketing(rows, weights, order, s=2):
    groups = [order[i : i + s] for i in range(0, len(order), s)]
    return np.stack([np.average(rows[g], 0, weights[g]) for g in groups]), np.array([weights[g].sum() for g in groups])


def mixing(rows, weights, f=1):
    near = [sorted(range(len(rows)), key=lambda j, row=row: np.linalg.norm(row - rows[j]))[: len(rows) - f] for row in rows]
    return np.stack([np.average(rows[k], 0, weights[k]) for k in near]), weights


def static_clipping(rows, weights, norm=1.0):
    return np.stack([clip(row, norm) for row in rows]), weights


def adaptive_clipping(rows, weights, f=1):
    n = len(rows)
    bound = sorted(np.linalg.norm(rows, axis=1))[n - 1 - int(2 * f * (n - f) / n)]
    return static_clipping(rows, weights, bound)


def run(problem: Problem, rule=mean, before=None, **arguments) -> State:
    """FedAvg with the rule. ``before(rows, weights, round)`` is a pre-aggregation."""
    model, rule, last = copy.deepcopy(problem.model), partial(rule, **arguments), None
    for round, clients in enumerate(problem.rounds):
        start = copy.deepcopy(model.state_dict())
        floats = [name for name, value in start.items() if value.is_floating_point()]
        ends = [train(problem, model, client).state_dict() for client in clients]
        rows = np.stack([np.concatenate([(end[n] - start[n]).numpy().ravel() for n in floats]) for end in ends])
        weights = np.array([float(share) for share in shares(clients)])
        if before is not None:
            rows, weights = before(rows, weights, round)
        last = rule(rows, weights, last)
        parts = np.split(last, np.cumsum([start[n].numel() for n in floats])[:-1])
        new = {n: start[n] + torch.from_numpy(part).view(start[n].shape) for n, part in zip(floats, parts, strict=True)}
        for name in start.keys() - new.keys():  # whole numbers
            counts = np.stack([end[name].numpy() for end in ends])
            new[name] = torch.tensor(np.rint(np.median(counts, 0))).to(start[name].dtype)
        model.load_state_dict(new)
    return model.state_dict()
