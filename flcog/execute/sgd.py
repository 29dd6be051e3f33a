"""The local optimiser's step; plain SGD's is computed here, without the overhead of ``torch.optim.Optimizer.step``."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Stepper = Callable[[list[Tensor]], None]
"""Takes the gradients, in the parameters' order, and moves the parameters."""


def stepper(optimizer: torch.optim.Optimizer, params: list[Tensor]) -> Stepper:
    """What applies one step of ``optimizer`` to ``params``.

    ``torch.optim.Optimizer.step`` opens a profiler range, looks for hooks and looks every parameter's state up: for a small model
    that costs as much as its backward pass. Plain SGD is therefore stepped here, with torch's own formula in torch's own order, so
    bit for bit the same; any other optimiser is called as it is.

    Args:
        optimizer: fresh, or with its state cleared: a client starts without momentum.
        params: all that it updates.
    """
    if not _is_plain_sgd(optimizer, params):

        def step(gradients: list[Tensor]) -> None:
            for parameter, gradient in zip(params, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()

        return step
    return _sgd(optimizer.param_groups[0], params)


def _is_plain_sgd(optimizer: torch.optim.Optimizer, params: list[Tensor]) -> bool:
    if type(optimizer) is not torch.optim.SGD or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    chosen = group["fused"] or group["foreach"] or group["maximize"] or group["differentiable"] or isinstance(group["lr"], Tensor)
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    same = [id(parameter) for parameter in group["params"]] == [id(parameter) for parameter in params]
    return same and not chosen and not hooked


def _sgd(group: dict[str, Any], params: list[Tensor]) -> Stepper:
    rate, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
    dampening, nesterov = group["dampening"], group["nesterov"]
    values = [parameter.detach() for parameter in params]
    velocity: list[Tensor] = []

    def step(gradients: list[Tensor]) -> None:
        if decay:
            gradients = list(torch._foreach_add(gradients, values, alpha=decay))
        if momentum:
            if not velocity:
                # torch's first velocity is the gradient itself, dampening or not.
                velocity.extend(gradient.clone() for gradient in gradients)
            else:
                torch._foreach_mul_(velocity, momentum)
                torch._foreach_add_(velocity, gradients, alpha=1 - dampening)
            gradients = list(torch._foreach_add(gradients, velocity, alpha=momentum)) if nesterov else velocity
        torch._foreach_add_(values, gradients, alpha=-rate)

    return step
