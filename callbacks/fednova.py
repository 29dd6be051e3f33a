"""FedNova: updates are normalised by each client's number of local steps before they are averaged."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flcog.core.checks import at_least, one_of
from flcog.core.precision import number_dtype
from flcog.core.types import Params, Slot
from flcog.method import Cohort, Context, Messages, Method, Upload


@dataclass(frozen=True)
class FedNova(Method):
    """Averages the clients' updates per local step, and rescales the mean: unequal numbers of steps no longer bend the objective.

    Client k of weight p_k moves the model by D_k in K_k steps, which amount to a_k plain SGD steps::

        a_k = K_k,  or  [K_k - r (1 - r^K_k) / (1 - r)] / (1 - r)  with local momentum r
        x <- x + (sum_k p_k a_k) * sum_k p_k D_k / a_k

    Equal a_k give FedAvg. The paper has another a_k for FedProx as the local solver, which is not implemented: beside
    :class:`~flcog.callbacks.FedProx` steps are counted as SGD's, which is right where lr * mu * K is small.

    ``feddisco`` is the form of FedDisco's code, which counts the full batches of one pass, whatever a client does in a round and
    whatever its momentum; it divides by zero where a client has no full batch, which here counts as one::

        a_k = n_k // batch_size

    Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
    https://arxiv.org/abs/2007.07481; https://github.com/MediaBrain-SJTU/FedDisco.

    Args:
        form: ``standard``, the paper's, or ``feddisco``.
        batch_size: of a_k in the form ``feddisco``, >= 1: the data's own.

    Example:
        >>> import flcog
        >>> trainer = flcog.FederatedTrainer(rounds=1, local_epochs=2, callbacks=[FedNova()], logger=False)
    """

    form: Literal["standard", "feddisco"] = "standard"
    batch_size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, ("standard", "feddisco"), "form")
        at_least(self, 1, "batch_size")

    def _steps(self, ctx: Context) -> Tensor:
        if self.form == "feddisco":
            return (torch.as_tensor(ctx.data.num_samples) // self.batch_size).clamp(min=1).to(number_dtype())
        return torch.as_tensor(ctx.optimisation.effective_steps(ctx.num_steps), dtype=number_dtype())

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        steps = self._steps(ctx)
        return Upload({name: value / steps for name, value in delta.items()}, ctx.state, mean={"steps": steps})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        return {name: messages.mean["steps"] * value for name, value in delta.items()}, server
