"""FedAdagrad, FedAdam and FedYogi: an adaptive optimiser on the server."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.core.checks import option
from flcog.core.types import Params, Slot
from flcog.method import Cohort, Messages, Method


@dataclass(frozen=True)
class _AdaptiveServer(Method, ABC):
    """Steps along the running mean of the mean updates, each parameter scaled by the root of its own accumulated square."""

    lr: float = option(0.01, "> 0")
    beta1: float = option(0.9, "[0, 1)")
    tau: float = option(1e-3, "> 0")

    @abstractmethod
    def _accumulate(self, v: Tensor, square: Tensor) -> Tensor:
        """The second moment after a round with a mean update of square ``square``. The three methods differ only here."""

    def init_server(self, params: Params) -> Slot:
        return {
            "m": {name: torch.zeros_like(value) for name, value in params.items()},
            "v": {name: torch.full_like(value, self.tau**2) for name, value in params.items()},
        }

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        m = {name: self.beta1 * value + (1 - self.beta1) * delta[name] for name, value in server["m"].items()}
        v = {name: self._accumulate(value, delta[name].square()) for name, value in server["v"].items()}
        return {name: self.lr * m[name] / (v[name].sqrt() + self.tau) for name in m}, {"m": m, "v": v}


@dataclass(frozen=True)
class FedAdagrad(_AdaptiveServer):
    """Makes the server step by Adagrad, with the clients' mean update as the gradient: parameters that moved much move less.

    With D the mean update; m starts at 0 and v at tau^2, and there is no bias correction::

        m <- beta1 m + (1 - beta1) D,   v <- v + D^2,   x <- x + lr m / (sqrt(v) + tau)

    Reddi et al., Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295.

    Args:
        lr: the server's step size (eta), > 0; about the change that a parameter should make in a round.
        beta1: momentum, in [0, 1).
        tau: lower limit of the scale, > 0: the larger, the less adaptive.
    """

    lr: float = option(0.1, "> 0")
    beta1: float = option(0.0, "[0, 1)")

    def _accumulate(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True)
class FedAdam(_AdaptiveServer):
    """Makes the server step by Adam, with the clients' mean update as the gradient.

    With D the mean update; m starts at 0 and v at tau^2, and there is no bias correction::

        m <- beta1 m + (1 - beta1) D,   v <- beta2 v + (1 - beta2) D^2,   x <- x + lr m / (sqrt(v) + tau)

    Reddi et al., Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295.

    Args:
        lr: the server's step size (eta), > 0; about the change that a parameter should make in a round.
        beta1: momentum, in [0, 1).
        tau: lower limit of the scale, > 0: the larger, the less adaptive.
        beta2: memory of the scale, in [0, 1).

    Example:
        >>> FedAdam(tau=0.5).init_server({"w": torch.ones(1)})
        {'m': {'w': tensor([0.])}, 'v': {'w': tensor([0.2500])}}
    """

    beta2: float = option(0.99, "[0, 1)")

    def _accumulate(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Makes the server step by Yogi, with the clients' mean update as the gradient: the scale forgets more slowly than Adam's.

    With D the mean update; m starts at 0 and v at tau^2, and there is no bias correction::

        m <- beta1 m + (1 - beta1) D,   v <- v - (1 - beta2) D^2 sign(v - D^2),   x <- x + lr m / (sqrt(v) + tau)

    Reddi et al., Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295.

    Args:
        lr: the server's step size (eta), > 0; about the change that a parameter should make in a round.
        beta1: momentum, in [0, 1).
        tau: lower limit of the scale, > 0: the larger, the less adaptive.
        beta2: memory of the scale, in [0, 1).
    """

    def _accumulate(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)
