"""SCAFFOLD: control variates remove the clients' differences from their gradients."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.core.checks import option
from flcog.core.types import Params, Slot
from flcog.method import ClientView, Cohort, Context, Messages, Method, Upload


def change_of_control(mean: Params, params: Params, ctx: Context, num_steps: Tensor | int | float) -> Params:
    """The change ``c_k' - c_k = (x - y) / (K lr) - c`` of a client's control variate after K steps from x to y: SCAFFOLD's option II.

    ``params`` is y, because a method may have changed the upload, and x is where the client started. With a learning rate of 0, as at
    the start of a warm-up, the client has not moved and learns nothing about its gradient: the change is 0.

    >>> from types import SimpleNamespace as Facts
    >>> context = Facts(started={"w": torch.tensor([1.0])}, optimisation=Facts(lr=0.1))
    >>> change_of_control({"w": torch.tensor([0.5])}, {"w": torch.tensor([0.8])}, context, num_steps=2)
    {'w': tensor([0.5000])}
    """
    lr = ctx.optimisation.lr
    travelled = lr * num_steps
    change = {name: (ctx.started[name] - params[name]) / travelled - c for name, c in mean.items()}
    if not isinstance(lr, Tensor) and lr != 0:
        return change
    still = {name: (ctx.started[name] == params[name]) & (lr == 0) for name in change}
    return {name: torch.where(still[name], 0, value) for name, value in change.items()}


@dataclass(frozen=True)
class ControlVariates(Method, ABC):
    """Corrects local gradients by control variates, for the parameters that have one at the server."""

    @abstractmethod
    def init_server(self, params: Params) -> Slot:
        """The server's control variates."""

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return self.init_server(params)

    def broadcast(self, server: Slot) -> Slot:
        return server

    def _steps(self, ctx: Context) -> Tensor | int | float:
        """The client's number of steps, counted in steps of plain SGD."""
        return ctx.optimisation.effective_steps(ctx.num_steps)

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        return gradient | {name: gradient[name] - own + ctx.broadcast["c"][name] for name, own in ctx.state["c"].items()}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        change = change_of_control(ctx.broadcast["c"], params, ctx, self._steps(ctx))
        return Upload(delta, {"c": {name: own + change[name] for name, own in ctx.state["c"].items()}}, sum={"change": change})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        change = messages.sum["change"]
        return delta, {"c": {name: c + change[name] / cohort.num_clients for name, c in server["c"].items()}}


@dataclass(frozen=True)
class SCAFFOLD(ControlVariates):
    """Corrects every local gradient by the difference between the average client's gradient and this client's own.

    Client k steps along ``g - c_k + c``. After K steps from x to y it estimates its mean gradient c_k again (the paper's option
    II), and the server updates x and c from the cohort S, of N clients in all::

        c_k' = c_k - c + (x - y) / (K lr)
        x <- x + server_lr * mean_S (y - x)
        c <- c + (1 / N) sum_S (c_k' - c_k)

    K is the client's own number of steps. Local momentum r makes K steps as long as up to K / (1 - r) plain ones. The formula
    would then overestimate the gradient by up to 1 / (1 - r), and training would diverge: K is therefore counted in steps of
    plain SGD. The estimate is meaningless for adaptive local optimisers such as Adam. With a learning rate
    of 0 a client keeps its c_k. As in the paper, c weights all clients equally, so the optimum is the optimum of the clients'
    unweighted mean loss, whatever weights average the models; list ``EqualWeights`` to average the models equally too. c_k follows the
    client's own change, and c the decoded change: give lossy codecs ``error_feedback``, or c drifts from the mean of the c_k.

    Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
    https://arxiv.org/abs/1910.06378.

    Args:
        server_lr: the server's step size (the paper's eta_g), > 0.

    Example:
        >>> SCAFFOLD(server_lr=0.5).init_server({"w": torch.ones(2)})
        {'c': {'w': tensor([0., 0.])}}
    """

    server_lr: float = option(1.0, "> 0")

    def init_server(self, params: Params) -> Slot:
        return {"c": {name: torch.zeros_like(value) for name, value in params.items()}}

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        delta, server = super().server_step(server, params, delta, messages, cohort)
        return {name: self.server_lr * value for name, value in delta.items()}, server
