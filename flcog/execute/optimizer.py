"""The local optimiser as a function of tensors alone, its learning rates included, as programs that are compiled or captured need it."""

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from flcog.core.precision import number_dtype
from flcog.core.types import Params

State = dict[str, dict[str, Tensor]]
"""What the optimiser keeps of each parameter."""

READ_RATES = (torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop)
"""Torch's own that, parameter by parameter, read the learning rate from its tensor, which no CUDA graph may; for lists they do not."""


class TensorOptimizer:
    """The user's optimiser on parameters, gradients, states and learning rates that are handed to it.

    Torch's own keep their step counts in Python, unless they are told that they are compiled or captured; then all are tensors.

    Args:
        optimizer: the user's own, elementwise.
        counterparts: by the names of the parameters, the ones that the user's optimiser holds.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, counterparts: Params) -> None:
        names = {id(parameter): name for name, parameter in counterparts.items()}
        self._optimizer = optimizer
        self._groups = [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
        self._is_sgd = type(optimizer) is torch.optim.SGD

    def rates(self, rates: Sequence[float], device: torch.device) -> list[Tensor]:
        """Its groups' learning rates as tensors."""
        return list(torch.tensor(list(rates), dtype=number_dtype(), device=device).unbind())

    def fresh_state(self, params: Params) -> State:
        """The state with which a client's training begins."""
        if self._is_sgd:
            moving = [names for names, group in self._by_group() if group["momentum"]]
            return {name: {"momentum_buffer": torch.zeros_like(params[name])} for names in moving for name in names}
        optimizer = self._on(params)
        with _told_to_compile():
            for names, group in zip(self._groups, optimizer.param_groups, strict=True):
                for name in names:
                    params[name].grad = params[name].detach()  # only what has a gradient gets a state
                lists = len(inspect.signature(optimizer._init_group).parameters) - 1  # type: ignore[attr-defined]
                optimizer._init_group(group, *([] for _ in range(lists)))  # type: ignore[attr-defined]
                for name in names:
                    params[name].grad = None
        return {name: dict(optimizer.state[params[name]]) for names in self._groups for name in names}

    def __call__(self, params: Params, gradients: Params, state: State, step: Tensor, rates: Sequence[Tensor]) -> None:
        """One step, in place.

        Args:
            params, gradients: by name.
            state: what it keeps of them.
            step: the step's number; the first is special with SGD's dampening.
            rates: the learning rates of its groups.
        """
        if self._is_sgd:
            for (names, group), rate in zip(self._by_group(), rates, strict=True):
                for name in names:
                    _sgd(group, params[name], gradients[name], state.get(name), step, rate)
            return
        optimizer = self._on(params)
        with _told_to_compile():
            for names, group, rate in zip(self._groups, optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
                for name in names:
                    optimizer.state[params[name]], params[name].grad = dict(state[name]), gradients[name]
            optimizer.step()
        for name in state:
            params[name].grad = None

    def _by_group(self) -> Iterator[tuple[list[str], dict[str, Any]]]:
        yield from zip(self._groups, self._optimizer.param_groups, strict=True)

    def _on(self, params: Params) -> torch.optim.Optimizer:
        """The same optimiser on other tensors."""
        kind: Callable[..., torch.optim.Optimizer] = type(self._optimizer)
        accepted = inspect.signature(kind).parameters
        apart = {"foreach": kind in READ_RATES, "fused": False, "capturable": True}
        own = {name: value for name, value in apart.items() if name in accepted}
        groups = [
            {name: value for name, value in group.items() if name != "params"}
            | own
            | {"params": [params[name] for name in names]}
            for names, group in self._by_group()
        ]
        return kind(groups, **{name: value for name, value in (self._optimizer.defaults | own).items() if name in accepted})


def _sgd(
    group: dict[str, Any], parameter: Tensor, gradient: Tensor, state: dict[str, Tensor] | None, step: Tensor, rate: Tensor
) -> None:
    """Torch's formula, in its order."""
    if group["maximize"]:
        gradient = -gradient
    if group["weight_decay"]:
        gradient = gradient + group["weight_decay"] * parameter
    if state is not None:
        velocity, momentum, dampening = state["momentum_buffer"], group["momentum"], group["dampening"]
        # The first velocity is the gradient itself, dampening or not.
        added = torch.where(step == 0, gradient, gradient * (1 - dampening)) if dampening else gradient
        velocity.mul_(momentum).add_(added)
        gradient = gradient + momentum * velocity if group["nesterov"] else velocity
    parameter.sub_(rate.to(parameter.dtype) * gradient)


_telling = threading.RLock()


@contextmanager
def _told_to_compile() -> Iterator[None]:
    """Torch's optimisers behave as under ``torch.compile``: no number is read from a tensor. The flag is one for all threads."""
    with _telling:
        before, torch.compiler._is_compiling_flag = torch.compiler._is_compiling_flag, True
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = before
