"""WorkerMomentum: each client sends a running sum of its updates."""

from dataclasses import dataclass

import torch

from flcog.core.checks import option
from flcog.core.types import Params, Slot
from flcog.method import ClientView, Context, Envelope, Stage


@dataclass(frozen=True)
class WorkerMomentum(Stage):
    """Makes each client send the momentum of its changes of the model over its rounds, which varies less than a single change.

    ::

        m_k <- beta m_k + u_k,   client k sends m_k

    The sum is not damped: a constant change grows to u / (1 - beta). Buffers and messages pass unchanged. Attackers leave the momentum
    out, as in the programs of the paper. With one local step and a local learning rate of 1, m_k is a momentum of gradients, and the
    learning rate of training is the ``lr`` of ``FedAvgM`` with ``beta: 0``.

    Karimireddy et al., Learning from History for Byzantine Robust Optimization, ICML 2021, https://arxiv.org/abs/2012.10333.

    Args:
        beta: in [0, 1); 0 is FedAvg.
    """

    beta: float = option(0.9, "[0, 1)")

    kind = "smooth"

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return {"m": {name: torch.zeros_like(value) for name, value in params.items()}}

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        new = {name: self.beta * ctx.state["m"][name] + value for name, value in envelope.delta.items()}
        return envelope._replace(delta=new), {"m": {**ctx.state["m"], **new}}
