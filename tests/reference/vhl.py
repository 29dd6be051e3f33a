"""Tang et al., 2022, https://arxiv.org/abs/2206.02465, with the losses of https://github.com/wizard1203/VHL.

The classifier is one linear layer with 2C outputs, as in the authors' code; virtual class c is class C + c.
"""

import copy
import math

import torch
import torch.nn.functional as F
from reference.common import Problem, State, average, shares
from torch import Tensor, nn


def contrast(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Khosla et al., 2020, eq. 2, row by row."""
    unit = features / features.norm(dim=1, keepdim=True).clamp(min=1e-12)
    losses = []
    for i in range(len(unit)):
        others = [a for a in range(len(unit)) if a != i]
        normaliser = sum(torch.exp(unit[i] @ unit[a] / temperature) for a in others)
        same = [a for a in others if labels[a] == labels[i]]
        terms = [-(unit[i] @ unit[p] / temperature - torch.log(normaliser)) for p in same]
        losses.append(sum(terms) / len(terms) if terms else torch.zeros((), dtype=features.dtype))
    return torch.stack(losses).mean()


def run(problem: Problem, virtual_head: nn.Linear, virtual: list[list[list[tuple[Tensor, Tensor]]]], temperature: float) -> State:
    """``virtual`` has the virtual batches by round, client of its cohort, and step. The terms have the weights 1, 1 and 0.1."""
    model = copy.deepcopy(problem.model)
    num_classes = model.head.out_features
    full = nn.Linear(model.head.in_features, 2 * num_classes).to(model.head.weight.dtype)
    with torch.no_grad():
        full.weight.copy_(torch.cat([model.head.weight, virtual_head.weight]))
        full.bias.copy_(torch.cat([model.head.bias, virtual_head.bias]))
    model.head = full
    for clients, batches in zip(problem.rounds, virtual, strict=True):
        locals_ = []
        for client, own_virtual in zip(clients, batches, strict=True):
            local = copy.deepcopy(model).train()
            optimizer = problem.optimizer(local.parameters())
            for (x, y), (v, u) in zip(client.batches, own_virtual, strict=True):
                optimizer.zero_grad()
                features, noise = local.features(x), local.features(v)
                loss = F.cross_entropy(local.head(features), y) + F.cross_entropy(local.head(noise), u + num_classes)
                loss = loss + contrast(torch.cat([features, noise.clone().detach()]), torch.cat([y, u]), temperature)
                (loss + 0.1 * contrast(noise, u, temperature)).backward()
                optimizer.step()
            locals_.append(local)
        model.load_state_dict(average(locals_, shares(clients)))
    state = model.state_dict()
    for part in ("weight", "bias"):
        state[f"head.{part}"], state[f"virtual_head.{part}"] = state[f"head.{part}"].split(num_classes)
    return state


def images(seed: int, num_classes: int, per_class: int, std: float, channels: int, side: int) -> Tensor:
    """The virtual set by scalar arithmetic: 8x8 noise about a random mean, enlarged bilinearly, clipped and normalised."""
    import numpy as np

    rng = np.random.default_rng(seed)
    means = rng.normal(size=(num_classes, 1, channels, 8, 8))
    small = means + std * rng.normal(size=(num_classes, per_class, channels, 8, 8))
    large = np.zeros((*small.shape[:3], side, side))
    for row in range(side):
        for column in range(side):
            y, x = (max(0.0, (p + 0.5) * 8 / side - 0.5) for p in (row, column))
            top, left = min(7, math.floor(y)), min(7, math.floor(x))
            below, right, dy, dx = min(7, top + 1), min(7, left + 1), y - top, x - left
            upper = (1 - dx) * small[..., top, left] + dx * small[..., top, right]
            lower = (1 - dx) * small[..., below, left] + dx * small[..., below, right]
            large[..., row, column] = (1 - dy) * upper + dy * lower
    return torch.from_numpy((large.clip(0, 1) - 0.5) / 0.25).flatten(0, 1)
