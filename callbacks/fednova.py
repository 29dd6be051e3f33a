"""FedNova: normalises updates by each client's number of local steps before they are averaged."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.core.precision import number_dtype
from flcog.core.types import Params, Slot
from flcog.method import Cohort, Context, Messages, Method, Upload


@dataclass(frozen=True)
class FedNova(Method):
    """Averages the clients' updates per local step, and rescales the mean: unequal numbers of steps no longer bias the objective.

    Client k of weight p_k moves the model by D_k in K_k steps, equivalent to a_k plain SGD steps::

        a_k = K_k,  or  [K_k - r (1 - r^K_k) / (1 - r)] / (1 - r)  with local momentum r
        x <- x + (sum_k p_k a_k) * sum_k p_k D_k / a_k

    Equal a_k give FedAvg. The paper has another a_k for FedProx as the local solver, which is not implemented: with
    :class:`~flcog.callbacks.FedProx`, steps are counted as SGD's, which is a good approximation if lr * mu * K is small. List
    FedNova before methods with a step of the server, such as FedAdam, because it multiplies the step by the numbers of steps.

    Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
    https://arxiv.org/abs/2007.07481.

    Example:
        >>> import flcog
        >>> trainer = flcog.FederatedTrainer(rounds=1, local_epochs=2, callbacks=[FedNova()], logger=False)
    """

    excludes = dict.fromkeys(
        ("DENSE", "FedDC", "FedDyn", "FedExP", "FedGen", "FlexLoRA", "LocalModels"),
        "it reads the changes of clients' models, and FedNova's clients send theirs divided by their numbers of steps",
    )

    def _steps(self, ctx: Context) -> Tensor:
        return torch.as_tensor(ctx.optimisation.effective_steps(ctx.num_steps), dtype=number_dtype())

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        steps = self._steps(ctx)
        return Upload({name: value / steps for name, value in delta.items()}, ctx.state, mean={"steps": steps})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        return {name: messages.mean["steps"] * value for name, value in delta.items()}, server
