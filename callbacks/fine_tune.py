"""FineTune: every client's own model is the global one, trained a little on the client's data."""

from dataclasses import dataclass

from flcog.core.checks import at_least
from flcog.core.types import Params
from flcog.hooks import Context, Method, Personal


@dataclass(frozen=True)
class FineTune(Method):
    """Changes nothing in training; at every evaluation each client trains a copy of the global model on its own samples.

    With x the global model, F_k client k's task loss alone and lr the local optimiser's::

        v_k = x;  ``steps`` times:  v_k <- v_k - lr grad F_k(v_k)

    v_k is measured on the client's held-out part (``data.client_test``, ``data.client_val``), as ``test/personal_accuracy_mean``
    and its like, and then forgotten. List it with any method to measure that one with fine-tuning. Costs ``steps`` local
    steps for each client of the federation, whenever the model is evaluated.

    Cheng et al., Fine-tuning is Fine in Federated Learning, 2021, https://arxiv.org/abs/2108.07313; in FedCOG's Table 9,
    https://arxiv.org/abs/2312.05966.

    Args:
        steps: optimiser steps on each client's own data, >= 0; 0 measures the global model.

    Example:
        >>> FineTune(steps=5).steps
        5
    """

    steps: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "steps")

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(params, self.steps)
