"""Bai et al., 2024, https://arxiv.org/abs/2402.11505, section 3: every client has matrices of its own rank, no masks.

The network has one adapted layer ``hidden.0``, a ReLU and a head. The adapter's scale is computed from the global rank.
"""

import torch
import torch.nn.functional as F
from reference.common import Problem, State, shares


def decompose(change: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    u, s, vt = torch.linalg.svd(change)
    for row in range(rank):  # the largest entry of each row of A is positive
        if vt[row, vt[row].abs().argmax()] < 0:
            vt[row], u[:, row] = -vt[row], -u[:, row]
    return u[:, :rank] * s[:rank], vt[:rank]


def run(problem: Problem, ranks: list[int]) -> State:
    adapter = problem.model.hidden[0]
    weight, bias, scale = adapter.layer.weight.detach(), adapter.layer.bias.detach(), adapter.alpha / adapter.rank
    b, a = adapter.B.detach().clone(), adapter.A.detach().clone()
    head = [problem.model.head.weight.detach().clone(), problem.model.head.bias.detach().clone()]
    for clients in problem.rounds:
        change, heads = torch.zeros_like(weight), [torch.zeros_like(value) for value in head]
        for client, share in zip(clients, shares(clients), strict=True):
            rank = ranks[client.id % len(ranks)]
            own = [value.clone().requires_grad_() for value in (b[:, :rank], a[:rank], *head)]
            optimizer = problem.optimizer(own)
            for inputs, targets in client.batches:
                optimizer.zero_grad()
                features = F.relu(F.linear(inputs, weight + scale * own[0] @ own[1], bias))
                problem.loss(F.linear(features, own[2], own[3]), targets).backward()
                optimizer.step()
            change += share * (own[0] @ own[1]).detach()
            heads = [total + share * value.detach() for total, value in zip(heads, own[2:], strict=True)]
        head, (b, a) = heads, decompose(change, len(a))
    return {"hidden.0.A": a, "hidden.0.B": b, "head.weight": head[0], "head.bias": head[1]}
