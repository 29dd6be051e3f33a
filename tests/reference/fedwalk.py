"""Zhai et al., 2024, https://arxiv.org/abs/2404.11888, algorithm 1, with the samples' weights in both means unless ``uniform``.

Two details that the paper leaves open follow flcog: L^s starts at infinity, and the leash has its own linear layer on the features.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from reference import fedavg
from reference.common import Problem, State, average, shares, train
from torch import Tensor, nn

Data = tuple[Tensor, Tensor]


def leash_steps(
    model: nn.Module, head: nn.Linear | None, batches: list[Data], lr: float, mode: str = "eval", loss: Callable = F.cross_entropy
) -> None:
    """Plain SGD on the leash, in place."""
    model.train(mode == "train")
    optimizer = torch.optim.SGD([*model.parameters(), *(head.parameters() if head else [])], lr=lr)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss(head(model.features(inputs)) if head else model(inputs), targets).backward()
        optimizer.step()


def compare(model: nn.Module, before: State, aggregated: State) -> tuple[float, float]:
    """Compares the leash's change of the parameters with the clients' aggregated change: cosine, and ratio of lengths."""
    named = dict(model.named_parameters())
    leash = torch.cat([(value.detach() - aggregated[name]).flatten() for name, value in named.items()])
    clients = torch.cat([(aggregated[name] - before[name]).flatten() for name in named])
    return float(F.cosine_similarity(leash, clients, dim=0)), float(leash.norm() / clients.norm())


def mean_loss(model: nn.Module, head: nn.Linear | None, data: Data, loss: Callable = F.cross_entropy) -> float:
    with torch.no_grad():
        model.eval()
        return float(loss(head(model.features(data[0])) if head else model(data[0]), data[1]))


def run(
    problem: Problem,
    data: Callable[[int], Data],
    leash: Data,
    batch: Callable[[int], Tensor],
    head: nn.Linear | None,
    tau: float | list[float],
    steps: int = 1,
    lr: list[float] | None = None,
    beta: float = 0.9,
    correction: bool = False,
    mode: str = "eval",
    uniform: bool = False,
    loss: Callable = F.cross_entropy,
    trace: list[dict[str, float]] | None = None,
) -> State:
    """``data(k)`` are all data of client k, and ``batch(i)`` the rows of leash step i. ``tau`` and ``lr`` may be lists, by round."""
    model, head = copy.deepcopy(problem.model), copy.deepcopy(head)
    client_loss, leash_loss, taken = 0.0, math.inf, 0
    for number, clients in enumerate(problem.rounds):
        weights = [1 / len(clients)] * len(clients) if uniform else shares(clients)
        locals_ = [train(problem, model, client) for client in clients]
        before = copy.deepcopy(model.state_dict())
        losses = [mean_loss(local, None, data(client.id), problem.loss) for local, client in zip(locals_, clients, strict=True)]
        model.load_state_dict(average(locals_, weights))
        client_loss = beta * client_loss + (1 - beta) * sum(w * value for w, value in zip(weights, losses, strict=True))
        compared = client_loss / (1 - beta ** (number + 1)) if correction else client_loss
        llr = -math.inf if leash_loss == math.inf else math.log2(compared / leash_loss)
        applied = llr < (tau[number] if isinstance(tau, list) else tau)
        cosine, length = 0.0, 0.0
        if applied:
            aggregated = copy.deepcopy(model.state_dict())
            batches = [(leash[0][batch(i)], leash[1][batch(i)]) for i in range(taken, taken + steps)]
            leash_steps(model, head, batches, problem.lr if lr is None else lr[number], mode, loss)
            leash_loss, taken = mean_loss(model, head, leash, loss), taken + steps
            cosine, length = compare(model, before, aggregated)
        if trace is not None:
            row = {"client_loss": compared, "leash_loss": leash_loss, "llr": llr, "applied": applied, "steps": taken}
            row |= {"cosine": cosine, "length": length}
            trace.append({f"fedwalk/{name}": float(value) for name, value in row.items()})
    return model.state_dict()


def pretrain(
    problem: Problem, leash: Data, batch: Callable[[int], Tensor], head: nn.Linear | None, lr: list[float], mode: str = "eval"
) -> State:
    """The pre-training of section 5.3 (2): one leash step per learning rate, and then federated averaging."""
    model, head = copy.deepcopy(problem.model), copy.deepcopy(head)
    for step, rate in enumerate(lr):
        leash_steps(model, head, [(leash[0][batch(step)], leash[1][batch(step)])], rate, mode)
    return fedavg.run(replace(problem, model=model.train()))
