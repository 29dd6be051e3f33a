"""Robust rules, pre-aggregations and attacks in numpy, from their papers, and FedAvg with all of them and momentum at the clients.

A rule takes the clients' changes as rows, their weights, and the last aggregate. A pre-aggregation takes and returns rows and weights.
"""

import copy
from functools import partial
from statistics import NormalDist

import numpy as np
import torch
from reference.common import Problem, State, shares, train


def mean(rows, weights, last=None):
    return np.average(rows, 0, weights)


def median(rows, weights, last=None):
    """The weighted median of each number: half of the weight is on each side. On a tie, it is the middle between two values."""
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
        near = sorted(range(len(chosen)), key=lambda k: abs(values[k] - np.sort(values)[(len(values) - 1) // 2]))[
            : len(rows) - 4 * f
        ]
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


def little(honest, count, z=None, **state):
    n = len(honest) + count
    s = n // 2 + 1 - count
    z = NormalDist().inv_cdf((n - count - s) / (n - count)) if z is None else z
    return honest.mean(0) - z * honest.std(0, ddof=1)


def inner_product(honest, count, epsilon=0.1, **state):
    return -epsilon * honest.mean(0)


def min_max(honest, count, direction="std", **state):
    """The strength is found by bisection, as in the paper."""
    mean = honest.mean(0)
    p = {"std": -honest.std(0, ddof=1), "unit": -mean / np.linalg.norm(mean), "sign": -np.sign(mean)}[direction]
    most = max(np.linalg.norm(a - b) for a in honest for b in honest)
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        fits = max(np.linalg.norm(mean + middle * p - row) for row in honest) <= most
        low, high = (middle, high) if fits else (low, middle)
    return mean + low * p


def mimic(honest, count, ids, round, memory, warmup, start):
    """As in the authors' program, z is learnt in the first rounds, and then a fixed client is copied."""
    mean = honest.mean(0)
    if round == 0:
        memory.update(z=start(round, len(mean)), mu=mean)
    else:
        memory["mu"] = round / (1 + round) * memory["mu"] + mean / (1 + round)
    if round < warmup:
        step = sum((row - memory["mu"]) * np.dot(row - memory["mu"], memory["z"]) for row in honest)
        step = step / np.linalg.norm(step)
        memory["z"] = step if round == 0 else round / (1 + round) * memory["z"] + step / (1 + round)
        memory["z"] = memory["z"] / np.linalg.norm(memory["z"])
    farthest = int(np.argmax(honest @ memory["z"]))
    if round < warmup:
        memory["target"] = ids[farthest]
    return honest[ids.index(memory["target"]) if memory["target"] in ids else farthest]


def run(
    problem: Problem, rule=mean, before=None, attackers=(), poison=None, send=None, forge=None, beta=0.0, **arguments
) -> State:
    """FedAvg with the rule.

    ``before(rows, weights, round)`` is a pre-aggregation. Attackers train on ``poison(inputs, targets)``, and send ``send(row)`` or,
    knowing the honest rows, ``forge``. The others send momentum.
    """
    model, rule, last, momenta, memory = copy.deepcopy(problem.model), partial(rule, **arguments), None, {}, {}
    for round, clients in enumerate(problem.rounds):
        start = copy.deepcopy(model.state_dict())
        floats = [name for name, value in start.items() if value.is_floating_point()]
        evil = [client.id in attackers for client in clients]
        poisoned = [
            client._replace(batches=[poison(*batch) for batch in client.batches]) if bad and poison else client
            for client, bad in zip(clients, evil, strict=True)
        ]
        ends = [train(problem, model, client).state_dict() for client in poisoned]
        rows = np.stack([np.concatenate([(end[n] - start[n]).numpy().ravel() for n in floats]) for end in ends])
        weights = np.array([float(share) for share in shares(clients)])
        for k, (client, bad) in enumerate(zip(clients, evil, strict=True)):
            if bad and send:
                rows[k] = send(rows[k])
            elif not bad:
                momenta[client.id] = rows[k] = beta * momenta.get(client.id, 0) + rows[k]
        if forge and any(evil):
            honest, ids = rows[~np.array(evil)], [client.id for client, bad in zip(clients, evil, strict=True) if not bad]
            rows[np.array(evil)] = forge(honest, sum(evil), ids=ids, round=round, memory=memory)
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
