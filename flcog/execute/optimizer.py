"""The local optimiser: SGD's formula, and the user's optimiser on other tensors than the module's parameters."""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from flcog.core.precision import number_dtype
from flcog.core.types import Params

Stepper = Callable[[list[Tensor]], None]
"""Takes the gradients in the order of the parameters, and updates the parameters."""

State = dict[str, dict[str, Tensor]]
"""The optimiser's state for each parameter."""

_NAMES = "SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD"
ELEMENTWISE = tuple(getattr(torch.optim, name) for name in _NAMES)
"""Optimisers that treat every element separately, so that one on stacked parameters equals one per client."""

READ_RATES = (torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop)
"""Optimisers of torch that read the learning rate from its tensor if they step parameter by parameter. A CUDA graph may not do this,
so these step lists of parameters."""


def stepper(optimizer: torch.optim.Optimizer, params: list[Tensor]) -> Stepper:
    """A function that applies one step of ``optimizer`` to ``params``.

    ``torch.optim.Optimizer.step`` opens a profiler range, looks for hooks and looks up every parameter's state: for a small model
    this takes as long as its backward pass. Plain SGD is therefore computed here, and is equal to torch's bit for bit.
    """
    if is_plain_sgd(optimizer, params):
        (group,) = optimizer.param_groups
        values, velocity = [parameter.detach() for parameter in params], list[Tensor]()
        return lambda gradients: _sgd(group, values, gradients, velocity, group["lr"])

    def step(gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(params, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    return step


def is_plain_sgd(optimizer: torch.optim.Optimizer, params: list[Tensor]) -> bool:
    """Whether the optimiser is torch's SGD with one group and without hooks or other implementations."""
    if type(optimizer) is not torch.optim.SGD or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    chosen = group["fused"] or group["foreach"] or group["maximize"] or group["differentiable"] or isinstance(group["lr"], Tensor)
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    same = [id(parameter) for parameter in group["params"]] == [id(parameter) for parameter in params]
    return same and not chosen and not hooked


def _sgd(
    group: Mapping[str, Any],
    params: list[Tensor],
    gradients: list[Tensor],
    velocity: list[Tensor],
    rate: float | Tensor,
    step: Tensor | None = None,
) -> None:
    """One step of SGD in place: torch's formula, in torch's order.

    An empty list of velocities is filled. A program, whose tensors are fixed, passes zeros, the number of the step, and the rate as a
    tensor, because it serves all rounds.
    """
    if group["maximize"]:
        gradients = list(torch._foreach_neg(gradients))
    if group["weight_decay"]:
        gradients = list(torch._foreach_add(gradients, params, alpha=group["weight_decay"]))
    if group["momentum"]:
        share, added = 1 - group["dampening"], gradients
        if step is not None and group["dampening"]:
            share, added = 1, [torch.where(step == 0, gradient, gradient * share) for gradient in gradients]
        if velocity:
            torch._foreach_mul_(velocity, group["momentum"])
            torch._foreach_add_(velocity, added, alpha=share)
        else:  # In torch the first velocity is the gradient, without dampening.
            velocity.extend(gradient.clone() for gradient in gradients)
        gradients = list(torch._foreach_add(gradients, velocity, alpha=group["momentum"])) if group["nesterov"] else velocity
    if isinstance(rate, Tensor):
        torch._foreach_sub_(params, [rate.to(gradient.dtype) * gradient for gradient in gradients])
    else:
        torch._foreach_add_(params, gradients, alpha=-rate)


def optimizer_like(
    optimizer: torch.optim.Optimizer, counterparts: Mapping[int, Tensor], **settings: Any
) -> torch.optim.Optimizer:
    """The same optimiser, with its settings and groups, on other tensors."""
    kind: Callable[..., torch.optim.Optimizer] = type(optimizer)
    accepted = inspect.signature(kind).parameters
    own = {name: value for name, value in settings.items() if name in accepted}
    groups = [{**group, **own, "params": [counterparts[id(p)] for p in group["params"]]} for group in optimizer.param_groups]
    return kind(groups, **{name: value for name, value in (optimizer.defaults | own).items() if name in accepted})


class TensorOptimizer:
    """The user's optimiser as a function of tensors: parameters, gradients, state and learning rates. Programs need this form.

    torch's optimisers count their steps in Python, unless they run compiled or captured. Here they always count in tensors.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, params: Params) -> None:
        self._optimizer, self._ids = optimizer, {name: id(parameter) for name, parameter in params.items()}
        names = {place: name for name, place in self._ids.items()}
        self._groups = [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
        self._is_sgd = type(optimizer) is torch.optim.SGD

    def rates(self, rates: Sequence[float], device: torch.device) -> list[Tensor]:
        """The learning rates of the groups as tensors."""
        return list(torch.tensor(list(rates), dtype=number_dtype(), device=device).unbind())

    def fresh_state(self, params: Params) -> State:
        """The state at the beginning of a client's training."""
        if self._is_sgd:
            moving = zip(self._groups, self._optimizer.param_groups, strict=True)
            names = [name for names, group in moving if group["momentum"] for name in names]
            return {name: {"momentum_buffer": torch.zeros_like(params[name])} for name in names}
        optimizer = self._on(params)
        with _as_if_compiled():
            for names, group in zip(self._groups, optimizer.param_groups, strict=True):
                for name in names:
                    params[name].grad = params[name].detach()  # only a parameter with a gradient gets a state
                lists = len(inspect.signature(optimizer._init_group).parameters) - 1  # type: ignore[attr-defined]
                optimizer._init_group(group, *([] for _ in range(lists)))  # type: ignore[attr-defined]
                for name in names:
                    params[name].grad = None
        return {name: dict(optimizer.state[params[name]]) for names in self._groups for name in names}

    def __call__(self, params: Params, gradients: Params, state: State, step: Tensor, rates: Sequence[Tensor]) -> None:
        """One step, in place."""
        if self._is_sgd:
            for names, group, rate in zip(self._groups, self._optimizer.param_groups, rates, strict=True):
                values, slopes = ([tensors[name] for name in names] for tensors in (params, gradients))
                velocity = [state[name]["momentum_buffer"] for name in names if name in state]
                _sgd(group, values, slopes, velocity, rate, step)
                # While torch records a program, operations on lists do not do this.
                torch.autograd.graph.increment_version(velocity)
            return
        optimizer = self._on(params)
        with _as_if_compiled():
            for names, group, rate in zip(self._groups, optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
                for name in names:
                    optimizer.state[params[name]], params[name].grad = dict(state[name]), gradients[name]
            optimizer.step()
        for name in state:
            params[name].grad = None

    def _on(self, params: Params) -> torch.optim.Optimizer:
        counterparts = {place: params[name] for name, place in self._ids.items()}
        foreach = type(self._optimizer) in READ_RATES
        return optimizer_like(self._optimizer, counterparts, foreach=foreach, fused=False, capturable=True)


_lock = threading.RLock()


@contextmanager
def _as_if_compiled() -> Iterator[None]:
    """torch's optimisers behave as under ``torch.compile``, and read no number from a tensor. The flag is global to all threads."""
    with _lock:
        before, torch.compiler._is_compiling_flag = torch.compiler._is_compiling_flag, True
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = before
