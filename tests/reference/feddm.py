"""Xiong et al., 2023, https://arxiv.org/abs/2207.09653, on the received model itself (rho = 0)."""

import copy

import torch
from reference.common import Problem, State
from torch import Tensor, nn

Images = dict[int, Tensor]
"""A client's images, by class."""


def match(
    model: nn.Module, images: Images, batches: list[tuple[Tensor, Tensor]], lr: float, momentum: float
) -> tuple[Images, float]:
    """The images after a step on each batch, and the last step's loss."""
    images = {label: value.clone().requires_grad_() for label, value in images.items()}
    optimizer = torch.optim.SGD(images.values(), lr=lr, momentum=momentum)
    for inputs, targets in batches:
        loss = torch.zeros(())
        for label in targets.unique().tolist():
            real, made = model.features(inputs[targets == label]).detach(), model.features(images[label])
            loss = loss + (real.mean(0) - made.mean(0)).pow(2).sum()
            loss = loss + (model.head(real).mean(0).detach() - model.head(made).mean(0)).pow(2).sum()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        for value in images.values():
            value.grad = torch.zeros_like(value) if value.grad is None else value.grad
        optimizer.step()
    return {label: value.detach() for label, value in images.items()}, float(loss.detach())


def run(problem: Problem, starts: list[list[Images]], image_lr: float, image_momentum: float, server: dict[str, float]) -> State:
    """``starts`` has the clients' initial images, by round; ``server`` has the server's epochs, lr, momentum and weight_decay."""
    model = copy.deepcopy(problem.model)
    for clients, first in zip(problem.rounds, starts, strict=True):
        sets = [match(model, s, client.batches, image_lr, image_momentum)[0] for client, s in zip(clients, first, strict=True)]
        inputs = torch.cat([value for images in sets for value in images.values()])
        labels = torch.tensor([label for images in sets for label, value in images.items() for _ in value])
        rest = {name: value for name, value in server.items() if name != "epochs"}
        optimizer = torch.optim.SGD(model.parameters(), **rest)
        for _ in range(int(server["epochs"])):
            optimizer.zero_grad()
            problem.loss(model(inputs), labels).backward()
            optimizer.step()
    return model.state_dict()
