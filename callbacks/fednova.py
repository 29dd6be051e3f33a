"""FedNova: normalises updates by each client's number of local steps before they are averaged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flcog.core.checks import at_least
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
    :class:`~flcog.callbacks.FedProx`, steps are counted as SGD's, which is a good approximation if lr * mu * K is small.

    Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
    https://arxiv.org/abs/2007.07481.

    Example:
        >>> import flcog
        >>> trainer = flcog.FederatedTrainer(rounds=1, local_epochs=2, callbacks=[FedNova()], logger=False)
    """

    excludes: ClassVar[Mapping[str, str]] = dict.fromkeys(
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


@dataclass(frozen=True)
class FedNovaInFedDisco(FedNova):
    """Averages updates per step as the program of FedDisco does for its baseline: it counts the full batches of one pass.

    The count depends neither on the client's steps in the round nor on its momentum::

        a_k = n_k // batch_size

    The program divides by zero for a client without a full batch. Here such a client counts as one batch.

    Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, https://arxiv.org/abs/2305.19229;
    https://github.com/MediaBrain-SJTU/FedDisco.

    Args:
        batch_size: batch size of the data, >= 1.

    Example:
        >>> FedNovaInFedDisco(batch_size=32).batch_size
        32
    """

    batch_size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "batch_size")

    def _steps(self, ctx: Context) -> Tensor:
        return (torch.as_tensor(ctx.data.num_samples) // self.batch_size).clamp(min=1).to(number_dtype())
