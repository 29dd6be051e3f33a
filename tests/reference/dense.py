"""Zhang et al., 2022, https://arxiv.org/abs/2112.12371, with the losses of https://github.com/zj-jayzhang/DENSE."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def ensemble(models: list[nn.Module], x: Tensor) -> Tensor:
    return sum(model.eval()(x) for model in models) / len(models)


def bn_loss(models: list[nn.Module], x: Tensor) -> Tensor:
    """Sums the distances between the batch's statistics and the running statistics of each model's BatchNorm layer."""
    total = torch.zeros((), dtype=x.dtype)
    for model in models:
        value = x
        for layer in model.eval():
            if isinstance(layer, nn.BatchNorm1d):
                mean = value.mean(0)
                variance = ((value - mean) ** 2).mean(0)
                total = total + torch.dist(mean, layer.running_mean) + torch.dist(variance, layer.running_var)
            value = layer(value)
    return total


def synthesis_loss(models: list[nn.Module], student: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """The generator's loss with weights of 1."""
    teacher, outputs = ensemble(models, x), student.eval()(x)
    adversarial = torch.zeros((), dtype=x.dtype)
    for t, s in zip(teacher, outputs, strict=True):
        if t.argmax() != s.argmax():
            adversarial = adversarial - F.kl_div(s.log_softmax(0), t.softmax(0), reduction="sum") / len(x)
    return F.cross_entropy(teacher, labels) + bn_loss(models, x) + adversarial


def distil(
    models: list[nn.Module], student: nn.Module, batches: list[Tensor], temperature: float, lr: float, momentum: float
) -> nn.Module:
    """The student after a step on each batch; its BatchNorm statistics do not change."""
    student = copy.deepcopy(student).eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=lr, momentum=momentum)
    for x in batches:
        with torch.no_grad():
            wanted = F.softmax(ensemble(models, x) / temperature, dim=1)
        optimizer.zero_grad()
        given = F.log_softmax(student(x) / temperature, dim=1)
        (F.kl_div(given, wanted, reduction="batchmean") * temperature * temperature).backward()
        optimizer.step()
    return student
