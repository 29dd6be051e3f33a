"""FedBuff: buffered asynchronous aggregation."""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from flcog.callbacks.fedavgm import momentum_step
from flcog.core.checks import option
from flcog.core.types import Params, Slot
from flcog.method import AsynchronousRounds, Cohort, Messages


@dataclass(frozen=True)
class FedBuff(AsynchronousRounds):
    """Steps when the next clients have arrived, while others continue to train from older models.

    ::

        d = (1 / K) sum over the K arrivals of (1 + s_k)^-a (y_k - x_k)
        v <- momentum v + d
        x <- x + server_lr v

    y_k is the model of arrival k after its training from x_k, the global model at its start, and s_k is the number of server steps
    since then. All clients count the same, and d is not divided by the sum of the weights, as in the authors' code. A round consists of K
    arrivals and a server step. After the step, selected clients that do not train already fill the free places with the new model. With a
    rate, client i starts at the time i / rate instead, if a place is free, with the model of that moment. Buffers of the model, such
    as BatchNorm's statistics, become the weighted mean of the arrivals' buffers.

    With as many clients in flight as arrivals, no momentum and a server_lr of 1, this is FedAvg with ``EqualWeights``. A buffer of 1 is
    asynchronous SGD. :class:`~flcog.callbacks.SystemModel` tells the times; without it, every local step takes a second and nothing
    else takes time. Columns: ``staleness/mean``, ``staleness/max``, and ``clients/in_flight`` after the step.

    Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022, https://arxiv.org/abs/2106.06639.

    Args:
        concurrency: the largest number of clients that train at the same time, >= 1. None takes ``trainer.clients_per_round``.
        buffer: K, at least 1 and at most the concurrency. None takes a tenth of the concurrency, rounded up.
        staleness: a, >= 0; 0 gives all arrivals the weight 1.
        server_lr: the server's step size, > 0.
        momentum: of the server, in [0, 1).
        arrival_rate: the number of clients that start in a simulated second, > 0. None fills all free places after each server step.

    Example:
        >>> FedBuff(staleness=0.5).discounts(torch.tensor([0.0, 3.0]))
        tensor([1.0000, 0.5000])
    """

    concurrency: int | None = option(None, ">= 1")
    buffer: int | None = option(None, ">= 1")
    staleness: float = option(0.5, ">= 0")
    server_lr: float = option(1.0, "> 0")
    momentum: float = option(0.0, "[0, 1)")
    arrival_rate: float | None = option(None, "(0, inf)")

    excludes = {"PoissonSampling": "it does not select a given number of clients for the free places"}

    @property
    def rate(self) -> float | None:
        return self.arrival_rate

    def concurrent(self, count: int) -> int:
        return count if self.concurrency is None else self.concurrency

    def arrivals(self, count: int) -> int:
        return ceil(self.concurrent(count) / 10) if self.buffer is None else self.buffer

    def discounts(self, staleness: Tensor) -> Tensor:
        return (1 + staleness) ** -self.staleness

    def init_server(self, params: Params) -> Slot:
        return {"velocity": {name: torch.zeros_like(value) for name, value in params.items()}} if self.momentum else {}

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        if not self.momentum:
            return {name: self.server_lr * value for name, value in delta.items()}, server
        return momentum_step(server["velocity"], delta, self.momentum, 1.0, self.server_lr)
