"""LabelFlip: attackers train on wrong labels."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator

from flcog.core.types import Batch, Params, Slot
from flcog.method import Attack, ClientView, Context, Gradient, GradientFunction


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Lets attackers train honestly on wrong labels: class y becomes C - 1 - y, of C classes.

    ::

        y <- C - 1 - y

    Fang et al., Local Model Poisoning Attacks to Byzantine-Robust Federated Learning, 2020, https://arxiv.org/abs/1911.11815.

    Example:
        >>> len(LabelFlip(fraction=0.2).attackers(seed=0, num_clients=25))
        5
    """

    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    plain_batches: ClassVar[bool] = True

    def draw(self, rng: Generator, client: ClientView) -> Slot:
        return super().draw(rng, client) | {"num_classes": torch.tensor(client.num_classes)}

    def wrap_gradient(self, gradient: GradientFunction, ctx: Context) -> GradientFunction:
        def flipped(params: Params, batch: Batch) -> Gradient:
            wrong = ctx.draws["num_classes"] - 1 - batch.targets
            return gradient(params, batch._replace(targets=torch.where(ctx.draws["attacks"], wrong, batch.targets)))

        return flipped
