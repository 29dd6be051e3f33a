"""FedReg: corrects local steps so that they do not forget the global model's knowledge."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply, Frozen, masked_mean
from flcog.method import Context, Gradient, GradientFunction, Method


def mix(share: float | Tensor, params: Params, anchor: Params) -> Params:
    """The point at fraction ``share`` of the way from ``anchor`` to ``params``."""
    return {name: share * value + (1 - share) * anchor[name] for name, value in params.items()}


def reject(direction: Params, gradient: Params) -> Params:
    """``direction`` without its component along ``gradient``; an opposite component stays.

    >>> reject({"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([2.0, 0.0])})
    {'w': tensor([0., 4.])}
    """
    inner = torch.stack([(direction[name] * value).sum() for name, value in gradient.items()]).sum()
    square = torch.stack([value.square().sum() for value in gradient.values()]).sum()
    share = (inner / (square + 1e-30)).clamp(min=0)
    return {name: value - share * gradient[name] for name, value in direction.items()}


def climb(model: Frozen, batch: Batch, etas: tuple[float, ...], steps: int) -> list[Batch]:
    """For each eta, the batch with inputs moved ``steps`` times by eta along the sign of the loss's gradient, in their range."""
    inputs, copies, around = batch.inputs, len(etas), [1] * (batch.inputs.ndim - 1)
    padding = inputs.new_zeros(len(inputs)).bool() if batch.mask is None else batch.mask == 0
    padding = padding.view(-1, *around)
    lowest, highest = inputs.masked_fill(padding, torch.inf).amin(), inputs.masked_fill(padding, -torch.inf).amax()
    # All etas share one batch: in evaluation mode rows do not influence each other, and only the gradient's sign is used.
    mask = None if batch.mask is None else batch.mask.repeat(copies)
    together = Batch(torch.cat([inputs] * copies), torch.cat([batch.targets] * copies), mask)
    slope = torch.func.grad(lambda x: model.loss(together._replace(inputs=x)))
    eta, moved = torch.cat([inputs.new_full((len(inputs),), eta) for eta in etas]).view(-1, *around), together.inputs
    for _ in range(steps):
        moved = (moved + eta * slope(moved).sign()).clamp(lowest, highest)
    return [batch._replace(inputs=climbed) for climbed in moved.chunk(copies)]


@dataclass(frozen=True)
class FedReg(Method):
    """Takes every local gradient nearer the received model, and after each step undoes forgetting, measured on modified batches.

    With x the received model and y the client's, on each batch B of inputs and labels::

        y <- y - lr * grad F_B(gamma y + (1 - gamma) x)
        pseudo = B moved ``steps`` times by eta_s sign(grad of x's loss by the inputs), labelled by x's probabilities there
        perturbed = the same by eta_p, with its own labels
        g2, g3 = gradients of the losses on pseudo, on perturbed at (x + y) / 2
        d <- y - x;  d <- d - max(0, <d, g2> / ||g2||^2) g2;  d <- d - max(0, <d, g3> / ||g3||^2) g3
        y <- x + d

    A step costs 2 steps + 3 gradients. Passes over the modified batches do not change BatchNorm's statistics. Inputs stay in the
    batch's range, as the authors' code intends. The authors weight clients equally: list :class:`~flcog.callbacks.EqualWeights`.

    Xu et al., Acceleration of Federated Learning with Alleviated Forgetting in Local Training, ICLR 2022,
    https://arxiv.org/abs/2203.02645; https://github.com/Zoesgithub/FedReg.

    Args:
        gamma: the point of the gradient, in [0, 1]: 1 for y, 0 for x. The authors use 0.4 for MNIST, 0.5 for CIFAR-10 and 0.25
            for CIFAR-100.
        eta_s: step size for the pseudo inputs, > 0.
        eta_p: step size for the perturbed inputs, > 0; the authors' is a hundredth of ``eta_s``.
        steps: number of steps for both, >= 1.
    """

    gamma: float = option(0.5, "[0, 1]")
    eta_s: float = option(0.1, "> 0")
    eta_p: float = option(0.001, "> 0")
    steps: int = option(10, ">= 1")

    tasks = ("classification",)
    plain_batches = True

    def wrap_gradient(self, gradient: GradientFunction, ctx: Context) -> GradientFunction:
        def nearer(params: Params, batch: Batch) -> Gradient:
            return gradient(mix(self.gamma, params, ctx.received.params), batch)

        return nearer

    def after_step(self, apply: Apply, params: Params, before: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        x, received = ctx.received.params, apply.frozen(ctx.received.params, ctx.received.buffers)
        pseudo, perturbed = climb(received, batch, (self.eta_s, self.eta_p), self.steps)
        labels = received(pseudo.inputs).softmax(1)

        def pseudo_loss(params: Params) -> Tensor:
            losses = F.cross_entropy(apply.frozen(params, ctx.buffers)(pseudo.inputs), labels, reduction="none")
            return masked_mean(losses, batch.mask)

        halfway = mix(0.5, params, x)
        direction = {name: value - x[name] for name, value in params.items()}
        direction = reject(direction, torch.func.grad(pseudo_loss)(halfway))
        direction = reject(direction, torch.func.grad(lambda p: apply.frozen(p, ctx.buffers).loss(perturbed))(halfway))
        return {name: value + direction[name] for name, value in x.items()}, ctx.state
