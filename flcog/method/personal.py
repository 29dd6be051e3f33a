"""What clients keep for themselves: models of their own, which are evaluated, and parts of the model that they do not share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from flcog.core.types import Params
from flcog.functional.apply import OwnForward
from flcog.method.context import Context
from flcog.method.method import Method


class Personal(NamedTuple):
    """A client's personal model, which the engine evaluates.

    Args:
        params: its parameters.
        steps: the number of local steps on the task loss with which the engine tunes it before the evaluation.
        own_statistics: whether to compute BatchNorm's statistics from the client's samples, instead of using the global model's.
        forward: the outputs of a personal model that consists of several models, as ``forward(apply, own, inputs)``. ``apply(params,
            inputs)`` are the outputs of the model in evaluation mode, and ``own`` are ``params`` after the tuning. APFL mixes the outputs
            of two models: ``lambda apply, own, inputs: a * apply(own, inputs) + (1 - a) * apply(received, inputs)``. The default is
            ``apply(own, inputs)``.
    """

    params: Params
    steps: int = 0
    own_statistics: bool = False
    forward: OwnForward | None = None


@dataclass(frozen=True, kw_only=True)
class Personalisation(Method, protocol=True):
    """Gives each client a model of its own, which is measured on the client's held-out samples. A run has at most one such method."""

    def personal(self, params: Params, ctx: Context) -> Personal:
        """The client's personal model. ``params`` are the global parameters. *Exclusive; pure.*"""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ParameterMask(Method, protocol=True):
    """Selects the parts of the parameters that a client receives and sends. If a run has several masks, all of them apply."""

    def mask(self, params: Params, client: int) -> Mapping[str, Tensor]:
        """A boolean tensor for each parameter that the client with this number does not share whole. *And; plain Python.*

        ``torch.tensor(False)`` lets the client train a parameter without sending it. The mask alone does not store the trained value,
        so the next round starts from the global value again. To keep it, return it as state from ``finish_client``, and put it back
        in ``start``, as FedRep does with its heads.

        A mask that broadcasts to the parameter's shape makes the client's model smaller. All other entries are 0 while the client
        trains, and are neither sent nor received. FlexLoRA cuts its adapters to a client's rank in this way.

        The masks of all clients must name the same parameters.
        """
        raise NotImplementedError
