"""FedNova: updates are normalised by each client's number of local steps before they are averaged."""

from dataclasses import dataclass

import torch

from flcog.core.precision import number_dtype
from flcog.core.types import Params, Slot
from flcog.hooks import Cohort, Context, Messages, Method, Upload


@dataclass(frozen=True)
class FedNova(Method):
    """Averages the clients' updates per local step, and rescales the mean: unequal numbers of steps no longer bend the objective.

    Client k of weight p_k moves the model by D_k in K_k steps, which amount to a_k plain SGD steps::

        a_k = K_k,  or  [K_k - r (1 - r^K_k) / (1 - r)] / (1 - r)  with local momentum r
        x <- x + (sum_k p_k a_k) * sum_k p_k D_k / a_k

    Equal a_k give FedAvg. The paper has another a_k for FedProx as the local solver, which is not implemented: beside
    :class:`~flcog.callbacks.FedProx` steps are counted as SGD's, which is right where lr * mu * K is small.

    Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
    https://arxiv.org/abs/2007.07481.

    Example:
        >>> import flcog
        >>> trainer = flcog.FederatedTrainer(rounds=1, local_epochs=2, callbacks=[FedNova()], logger=False)
    """

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        steps = torch.as_tensor(ctx.optimisation.effective_steps(ctx.num_steps), dtype=number_dtype())
        return Upload({name: value / steps for name, value in delta.items()}, ctx.client, mean={"steps": steps})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        return {name: messages.mean["steps"] * value for name, value in delta.items()}, server
