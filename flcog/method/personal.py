"""Personal models: a method whose clients have models of their own, which are evaluated."""

from dataclasses import dataclass
from typing import NamedTuple

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
