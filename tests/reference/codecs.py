"""FedAvg whose clients compress their changes, tensor by tensor, and the codecs of the papers in numpy."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from reference.common import Problem, State, shares, train

Vector = NDArray[np.float64]
Draws = Callable[[int, int, int, int], Any]
"""Maps round, client, number of the tensor and its size to random numbers."""

Compress = Callable[[Vector, Any], Vector]
"""Maps a vector and its random numbers to the vector that the server receives."""


def run(problem: Problem, compress: Compress, draws: Draws = lambda *keys: None, feedback: bool = False) -> State:
    """Runs FedAvg with compressed changes. Tensors of fewer than 16 numbers, and whole numbers, are not compressed.

    With ``feedback`` (algorithm 1 of https://arxiv.org/abs/1901.09847) a client keeps the part of its change that was lost.
    """
    model = copy.deepcopy(problem.model)
    lost: dict[tuple[int, str], Vector] = {}
    for round, clients in enumerate(problem.rounds):
        before = copy.deepcopy(model.state_dict())
        names = [name for name, _ in model.named_parameters()]
        names += [name for name in before if name not in names]
        total = {name: value.clone() for name, value in before.items()}
        for client, share in zip(clients, shares(clients), strict=True):
            place = 0
            after = train(problem, model, client).state_dict()
            for name in names:
                change = after[name] - before[name]
                if change.is_floating_point() and change.numel() >= 16:
                    key = client.id, name
                    flat = change.numpy().reshape(-1) + (lost.get(key, 0) if feedback else 0)
                    sent = compress(flat, draws(round, client.id, place, flat.size))
                    lost[key] = flat - sent
                    change, place = torch.from_numpy(sent).view(change.shape), place + 1
                total[name] = total[name] + share * change if change.is_floating_point() else after[name]
        model.load_state_dict(total)
    return model.state_dict()


def low_precision(v: Vector, u: None, type: torch.dtype) -> Vector:
    return torch.from_numpy(v).to(type).double().numpy()


def qsgd(v: Vector, u: Vector, bits: int, contract: bool = False) -> Vector:
    """Rounds to level l or l + 1 of s levels above 0, as in section 3.1 of https://arxiv.org/abs/1610.02132.

    With ``contract``, the result is divided by 1 + omega.
    """
    return at_random(v, u, bits, np.sqrt((v**2).sum()), contract)


def at_random(v: Vector, u: Vector, bits: int, scale: float, contract: bool) -> Vector:
    s = 2 ** (bits - 1) - 1
    position = s * np.abs(v) / scale
    lower = np.floor(position)
    share = position - lower
    omega = (share * (1 - share)).sum() * (scale / s) ** 2 / (v**2).sum()
    return scale * np.sign(v) * (lower + (u >= 1 - share)) / s / (1 + omega if contract else 1)


def nearest(v: Vector, u: None, bits: int) -> Vector:
    s, largest = 2 ** (bits - 1) - 1, np.abs(v).max()
    return np.rint(v / largest * s) / s * largest


def in_buckets(v: Vector, u: Vector, compress: Compress, size: int) -> Vector:
    return np.concatenate([compress(v[i : i + size], u[i : i + size]) for i in range(0, len(v), size)])


def rotated(v: Vector, draws: tuple[Vector, Vector], bits: int, contract: bool = False) -> Vector:
    """https://arxiv.org/abs/1611.00429, section 3, with levels that are symmetric about 0. ``draws`` are signs and uniform numbers."""
    signs, u = draws
    d = len(signs)
    hadamard = np.array([[(-1.0) ** (i & j).bit_count() for i in range(d)] for j in range(d)]) / np.sqrt(d)
    turned = hadamard @ (signs * np.pad(v, (0, d - len(v))))
    return (signs * (hadamard @ at_random(turned, u, bits, np.abs(turned).max(), contract)))[: len(v)]


def top_k(v: Vector, u: Any, k: int, inner: Compress = lambda v, u: v) -> Vector:
    kept = np.sort(np.argsort(-np.abs(v))[:k])
    out = np.zeros_like(v)
    out[kept] = inner(v[kept], u)
    return out


def random_k(v: Vector, positions: NDArray[np.int64], scaled: bool) -> Vector:
    out = np.zeros_like(v)
    out[positions] = v[positions] * (len(v) / len(positions) if scaled else 1)
    return out


def sign_sgd(v: Vector, u: None) -> Vector:
    """The compressor of https://arxiv.org/abs/1901.09847, section 3. A bit has no third value for 0."""
    return np.where(v >= 0, 1, -1) * np.abs(v).sum() / len(v)


def majority_vote(problem: Problem, feedback: bool = False) -> State:
    """Algorithm 3 of https://arxiv.org/abs/1802.04434 with the mean of the clients' scales as the step, and weights as votes."""
    model = copy.deepcopy(problem.model)
    lost: dict[tuple[int, str], torch.Tensor] = {}
    for clients in problem.rounds:
        before, after = copy.deepcopy(model.state_dict()), copy.deepcopy(model.state_dict())
        ends = [train(problem, model, client).state_dict() for client in clients]
        for name, start in before.items():
            votes, scale, plain = torch.zeros_like(start), 0.0, torch.zeros_like(start)
            for client, share, end in zip(clients, shares(clients), ends, strict=True):
                change = end[name] - start + (lost.get((client.id, name), 0) if feedback else 0)
                sign, size = torch.where(change >= 0, 1.0, -1.0).double(), change.abs().mean()
                votes, scale, plain = votes + share * sign, scale + share * size, plain + share * (end[name] - start)
                lost[client.id, name] = change - size * sign
            after[name] = start + (votes.round(decimals=9).sign() * scale if start.numel() >= 16 else plain)
        model.load_state_dict(after)
    return model.state_dict()
