"""What clients keep for themselves: models of their own, which are evaluated, and parts of the model that they do not share."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flcog.core.types import Params, Slot
from flcog.functional.apply import OwnForward
from flcog.functional.model_function import ModelFunction
from flcog.method.client_view import ClientView
from flcog.method.context import Context
from flcog.method.method import Method, method_of

DOWNLOAD = "download"
"""The name under which a client's random numbers for a method also hold the method's message to this client alone."""


class Personal(NamedTuple):
    """A client's personal model, which the engine evaluates.

    Args:
        params: its parameters.
        steps: the number of local steps on the task loss with which the engine tunes it before the evaluation.
        lr: the learning rate of these steps; None for the local optimiser's.
        own_statistics: whether to compute BatchNorm's statistics from the client's samples, instead of using the global model's.
        forward: the outputs of a personal model that consists of several models, as ``forward(apply, own, inputs)``. ``apply(params,
            inputs)`` are the outputs of the model in evaluation mode, and ``own`` are ``params`` after the tuning. APFL mixes the outputs
            of two models: ``lambda apply, own, inputs: a * apply(own, inputs) + (1 - a) * apply(received, inputs)``. The default is
            ``apply(own, inputs)``.
    """

    params: Params
    steps: int = 0
    lr: float | None = None
    own_statistics: bool = False
    forward: OwnForward | None = None


@dataclass(frozen=True, kw_only=True)
class Personalisation(Method, protocol=True):
    """Gives each client a model of its own, which is measured on the client's held-out samples. A run has at most one such method."""

    @abstractmethod
    def personal(self, params: Params, ctx: Context) -> Personal:
        """The client's personal model. ``params`` are the global parameters. *Exclusive; pure.*"""


@dataclass(frozen=True, kw_only=True)
class ParameterMask(Method, protocol=True):
    """Selects the parts of the parameters that a client receives and sends. If a run has several masks, all of them apply."""

    @abstractmethod
    def mask(self, params: Params, client: int) -> Mapping[str, Tensor]:
        """A boolean tensor for each parameter that the client with this number does not share whole. *And; plain Python.*

        ``torch.tensor(False)`` lets the client train a parameter without sending it. The mask does not store the trained value, so
        the next round starts from the global value again; :class:`LocalParts` keeps it.

        A mask that broadcasts to the parameter's shape makes the client's model smaller. All other entries are 0 while the client
        trains, and are neither sent nor received. FlexLoRA cuts its adapters to a client's rank in this way.

        The masks of all clients must name the same parameters.
        """


@dataclass(frozen=True, kw_only=True)
class OwnDownload(Method, protocol=True):
    """Sends each client something that no other client receives, such as a mixture of other clients' models."""

    @abstractmethod
    def send_to(self, server: Slot, params: Params, client: int, rng: torch.Generator) -> Mapping[str, Any]:
        """The message that this client downloads in a round beside the broadcast, and finds in ``ctx.broadcast``. *Plain Python.*

        ``params`` are the global model's. The result has the same structure and shapes for every client.
        """


@dataclass(frozen=True, kw_only=True)
class LocalParts(Personalisation, protocol=True):
    """Keeps parts of the model at each client: it trains them, goes on from them in its next round, and never sends them.

    The server and the other methods of the run work with the shared parameters: the hooks of other methods receive these alone, and
    ``apply`` completes them with the client's own. Only ``wrap_gradient`` sees all parameters, because a clipped or a perturbed gradient
    concerns each number. FedProx thus acts on the shared parameters, and SCAFFOLD's control variates, a codec and the noise of DPFedAvg
    exist for them alone. The client's own parameters are ``ctx.state["own"]``. A first state has the initial ones.
    """

    @abstractmethod
    def local(self, module: nn.Module) -> Collection[str]:
        """The names of the parameters and buffers that stay at the client. A function of the module's form. *Plain Python.*"""

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        """``params`` are the ones that stay at the client."""
        return {"own": dict(params)}

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(params | ctx.state["own"])


def local_names(methods: Sequence[Method], model: ModelFunction) -> Collection[str]:
    """The names of the parameters and buffers that stay at the clients."""
    keeper = method_of(methods, LocalParts)
    if keeper is None:
        return frozenset()
    found = frozenset(keeper.local(model.module)) & {*model.params, *model.shared_buffers}
    if len(kept := found & model.params.keys()) in (0, len(model.params)):
        share, names = "all" if kept else "none", ", ".join(model.params)
        raise ValueError(f"{keeper!r} keeps {share} of the parameters at the clients: choose among {names}")
    return found


def seen_by(method: Method, params: Params, local: Collection[str]) -> Params:
    """The parameters that a method's states know: the shared ones, or those that stay if the method keeps them."""
    keeps = isinstance(method, LocalParts)
    return {name: value for name, value in params.items() if (name in local) == keeps} if local else dict(params)
