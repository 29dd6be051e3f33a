"""LabelFlip and Backdoor: attackers train on changed samples."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from flcog.callbacks.attacks.uploads import altered
from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.functional.model_function import forward
from flcog.method import Attack, ClientView, Context, Envelope, Gradient, GradientFunction, Run


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

    tasks = ("classification",)
    plain_batches = True

    def draw(self, rng: Generator, client: ClientView) -> Slot:
        return super().draw(rng, client) | {"num_classes": torch.tensor(client.num_classes)}

    def wrap_gradient(self, gradient: GradientFunction, ctx: Context) -> GradientFunction:
        def flipped(params: Params, batch: Batch) -> Gradient:
            wrong = ctx.draws["num_classes"] - 1 - batch.targets
            return gradient(params, batch._replace(targets=torch.where(ctx.draws["attacks"], wrong, batch.targets)))

        return flipped


ROWS = 256
"""Test samples in a forward pass."""


@dataclass(frozen=True)
class Backdoor(Attack):
    """Lets attackers train part of each batch with a trigger in the input and the attackers' class as the label.

    ::

        (x, y) <- (trigger(x), target)      for the first ``share`` of a batch
        u_k <- boost u_k

    The trigger sets the last ``size`` columns of the last ``size`` rows of an image, or the last ``size`` features of a row of a table, to
    ``value``. Each evaluation adds the column ``test/backdoor_success``: the share of test samples of other classes that the global model
    takes for the target class when they have the trigger.

    Bagdasaryan et al., How To Backdoor Federated Learning, AISTATS 2020, https://arxiv.org/abs/1807.00459. With ``boost`` n / f the mean
    becomes the attackers' model.

    Args:
        target: the label that attackers want, from 0.
        share: of a batch that has the trigger, in (0, 1].
        size: of the trigger, at least 1.
        value: of the trigger, in the unit of the inputs after preprocessing.
        boost: the factor on an attacker's changes and messages, > 0.

    Example:
        >>> triggered(torch.zeros(1, 1, 2, 3), size=1, value=2.5)[0, 0]
        tensor([[0.0000, 0.0000, 0.0000],
                [0.0000, 0.0000, 2.5000]])
    """

    target: int = option(0, ">= 0")
    share: float = option(0.5, "(0, 1]")
    size: int = option(3, ">= 1")
    value: float = 2.5
    boost: float = option(1.0, "> 0")

    tasks = ("classification",)
    plain_batches = True

    def wrap_gradient(self, gradient: GradientFunction, ctx: Context) -> GradientFunction:
        def poisoned(params: Params, batch: Batch) -> Gradient:
            rows = torch.arange(len(batch.targets), device=batch.targets.device)
            # Padding, which follows the samples, does not count, or the attackers would poison more of a small batch.
            real = torch.ones(len(rows), device=rows.device) if batch.mask is None else batch.mask
            poison = ctx.draws["attacks"] & (rows < self.share * real.sum())
            inputs = torch.where(
                poison.view(-1, *[1] * (batch.inputs.ndim - 1)), triggered(batch.inputs, self.size, self.value), batch.inputs
            )
            return gradient(params, batch._replace(inputs=inputs, targets=torch.where(poison, self.target, batch.targets)))

        return poisoned

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        return (envelope if self.boost == 1 else altered(envelope, ctx, lambda change, place: self.boost * change)), ctx.state

    @torch.no_grad()
    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        test, processes = run.federation.test, run.processes
        if test is None:
            return
        others = (test.labels != self.target).nonzero().flatten()
        hits = torch.zeros((), dtype=torch.int64, device=processes.device)
        params = run.evaluated_params()
        for rows in others[processes.rank :: processes.count].split(ROWS):
            inputs, _ = run.federation.load(test, rows, processes.device)
            outputs = run.model.frozen(params, run.buffers, forward, triggered(inputs, self.size, self.value))
            hits += (outputs.argmax(1) == self.target).sum()
        metrics["test/backdoor_success"] = float(processes.total(hits)) / max(1, len(others))


def triggered(inputs: Tensor, size: int, value: float) -> Tensor:
    """The inputs with the trigger: images [B, C, H, W], or rows [B, F]."""
    marked = torch.zeros(inputs.shape[1:], dtype=torch.bool, device=inputs.device)
    (marked[..., -size:, -size:] if inputs.ndim == 4 else marked[..., -size:]).fill_(True)
    return inputs.masked_fill(marked, value)
