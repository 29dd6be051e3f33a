"""Arguments and results of hooks that clients call."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from flcog.core.precision import number_dtype
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.wire.packing import message


@message
class Optimisation(NamedTuple):
    """The settings of the local optimiser in this round, for its first group of parameters.

    If the learning rate changes within a round, ``lr`` is the rate of the step, and in ``finish_client`` the mean over the client's steps:
    ``lr * num_steps`` is their sum.
    """

    lr: float
    momentum: float
    weight_decay: float
    dampening: float = 0.0
    nesterov: bool = False

    def effective_steps(self, num_steps: Tensor | int) -> Tensor | int | float:
        """The number of plain SGD steps that accumulate as many gradients as T = ``num_steps`` steps with momentum (FedNova's ||a||_1).

        With momentum r it is a = [T - r (1 - r^T) / (1 - r)] / (1 - r) (Wang et al., 2020, https://arxiv.org/abs/2007.07481). As torch
        defines them, Nesterov's momentum makes it T + r a, and dampening d makes it (1 - d) a + d (1 - r^T) / (1 - r).

        >>> Optimisation(0.1, 0.5, 0.0).effective_steps(2), Optimisation(0.1, 0.5, 0.0, nesterov=True).effective_steps(2)
        (2.5, 3.25)
        """
        r, d = self.momentum, self.dampening
        if isinstance(num_steps, Tensor):  # under vmap, where torch would convert 257 steps to bfloat16, which is 256
            num_steps = num_steps.to(number_dtype())
        if r == 0:
            return num_steps
        plain = (num_steps - r * (1 - r**num_steps) / (1 - r)) / (1 - r)
        if self.nesterov:
            return num_steps + r * plain
        return (1 - d) * plain + d * (1 - r**num_steps) / (1 - r) if d else plain


class GlobalModel(NamedTuple):
    """The global model that a client receives."""

    params: Params
    buffers: Params


class ClientData(NamedTuple):
    """Facts about the client's own training set.

    Args:
        num_samples: its size.
        weight: the client's weight in the aggregation.
        mean: the mean of the method's ``over_data`` over all samples. Only ``finish_client`` receives it.
    """

    num_samples: Tensor | int
    weight: Tensor | float
    mean: Slot


class Context(NamedTuple):
    """A client as one method sees it in pure hooks. The round is known to the server alone, as ``cohort.round``.

    Numbers are Python numbers in the loop and 0-d tensors under vmap: compute with them, and never branch on them.

    Args:
        received: the global model of this round.
        broadcast: the part of the method's server state that the hook ``broadcast`` has sent.
        state: the method's state of this client.
        draws: the method's random numbers of this client and round.
        inputs: the data that the method made in ``start``.
        buffers: the buffers of the client's model.
        step: the number of the local step, counted from 0.
        num_steps: the client's number of local steps in this round.
        data: facts about the client's training set.
        optimisation: the settings of the local optimiser.
        started: the parameters before the first local step: the received ones, or those that a method's ``start`` has chosen.
    """

    received: GlobalModel
    broadcast: Slot
    state: Slot
    draws: Slot
    inputs: Slot
    buffers: Params
    step: Tensor | int
    num_steps: Tensor | int
    data: ClientData
    optimisation: Optimisation
    started: Params = {}


class Gradient(NamedTuple):
    """The gradient of the total loss at some parameters.

    Args:
        values: by parameter.
        buffers: the model's buffers after the forward pass.
        loss: the task loss.
        state: the new state of the method whose ``wrap_gradient`` returns this gradient. None leaves the state as it is.
        logged: the values that the module's own ``training_step`` logged.
    """

    values: Params
    buffers: Params
    loss: Tensor
    state: Any = None
    logged: Params = {}


GradientFunction = Callable[[Params, Batch], Gradient]


class BatchFunction(Protocol):
    """A pure function of a client's model and a batch, whose values are means over the batch."""

    def __call__(self, apply: Apply, params: Params, batch: Batch) -> Slot: ...


class ChangeFunction(Protocol):
    """A pure function of the change of the model that a client sends."""

    def __call__(self, change: Params, /) -> Tensor: ...


class Upload(NamedTuple):
    """The result of ``finish_client``.

    Args:
        delta: the change of the model. None sends neither parameters nor buffers. The server takes the weighted mean.
        state: the method's new state, which stays at the client.
        mean: a message. The server receives its weighted mean over the clients.
        sum: a message. The server receives its sum over the clients.

    The bytes of each tensor count once: a message that *is* the delta costs nothing more.
    """

    delta: Params | None
    state: Slot
    mean: Mapping[str, Tensor | Params] = {}
    sum: Mapping[str, Tensor | Params] = {}


class FirstContact(NamedTuple):
    """The return value of ``init_client`` for methods whose clients introduce themselves to the server.

    Args:
        state: the client's state before its first round.
        message: a number or a tree of tensors, which the client sends the server once in its life, before it trains. ``weights``
            receives it. None sends nothing.
    """

    state: Slot
    message: Any = None
