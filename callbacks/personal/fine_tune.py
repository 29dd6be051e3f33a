"""FineTune: every client's own model is the global model after a few training steps on the client's data."""

from dataclasses import dataclass

from flcog.core.checks import option
from flcog.core.types import Params, Slot
from flcog.method import ClientView, Context, Personal, Personalisation, Upload


@dataclass(frozen=True)
class FineTune(Personalisation):
    """Changes nothing in training; at every evaluation each client trains a copy of the global model on its own samples.

    With x the global model, F_k client k's task loss without other methods' terms, and lr the local optimiser's learning rate::

        v_k = x;  ``steps`` times:  v_k <- v_k - lr grad F_k(v_k)

    v_k is measured on the client's own test set (``data.client_test``, ``data.client_val``), as ``test/personal_accuracy_mean``
    and similar columns, and then discarded. List it with any method to measure that method with fine-tuning. Costs ``steps``
    local steps for each client of the federation at every evaluation.

    With ``steps: null``, v_k is instead the client's last local model before averaging, which was trained from the global model
    for the whole round, with the losses of all methods. FedCOG calls this fine-tuning (A.4.1). Each client keeps this model;
    before the client's first round it is the global one.

    Cheng et al., Fine-tuning is Fine in Federated Learning, 2021, https://arxiv.org/abs/2108.07313; in FedCOG's Table 9,
    https://arxiv.org/abs/2312.05966.

    Args:
        steps: optimiser steps on each client's own data, >= 0; 0 measures the global model, None the last local one.
    """

    steps: int | None = option(20, ">= 0")

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return {"params": dict(params)} if self.steps is None else {}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(delta, {"params": params} if self.steps is None else ctx.state)

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(params, self.steps) if self.steps is not None else Personal(ctx.state["params"], own_statistics=True)
