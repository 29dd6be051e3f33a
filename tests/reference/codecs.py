"""FedAvg whose clients compress their changes, tensor by tensor, and the codecs of the papers in numpy."""

import copy
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from reference.common import Problem, State, shares, train

Vector = NDArray[np.float64]
Compress = Callable[[Vector, Vector], Vector]
"""From a vector and as many numbers that are uniform in [0, 1) to the vector that the server sees."""

Uniform = Callable[[int, int, int, int], Vector]
"""From round, client, number of the tensor and size to numbers that are uniform in [0, 1)."""


def no_noise(round: int, client: int, place: int, size: int) -> Vector:
    return np.full(size, np.nan)


def run(problem: Problem, compress: Compress, uniform: Uniform = no_noise) -> State:
    """Tensors of fewer than 16 numbers, and whole numbers, stay as they are."""
    model = copy.deepcopy(problem.model)
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
                    flat = change.numpy().reshape(-1)
                    sent = compress(flat, uniform(round, client.id, place, flat.size))
                    change, place = torch.from_numpy(sent).view(change.shape), place + 1
                total[name] = total[name] + share * change if change.is_floating_point() else after[name]
        model.load_state_dict(total)
    return model.state_dict()


def low_precision(v: Vector, u: Vector, type: torch.dtype) -> Vector:
    return torch.from_numpy(v).to(type).double().numpy()


def qsgd(v: Vector, u: Vector, bits: int) -> Vector:
    """Section 3.1 of https://arxiv.org/abs/1610.02132: level l or l + 1, with s levels above 0."""
    s, norm = 2 ** (bits - 1) - 1, np.sqrt((v**2).sum())
    position = s * np.abs(v) / norm
    lower = np.floor(position)
    return norm * np.sign(v) * (lower + (u >= 1 - (position - lower))) / s


def nearest(v: Vector, u: Vector, bits: int) -> Vector:
    s, largest = 2 ** (bits - 1) - 1, np.abs(v).max()
    return np.rint(v / largest * s) / s * largest


def in_buckets(v: Vector, u: Vector, compress: Compress, size: int) -> Vector:
    return np.concatenate([compress(v[i : i + size], u[i : i + size]) for i in range(0, len(v), size)])
