"""FedRep: clients share the features and keep their own head."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flcog.core.checks import option
from flcog.core.precision import count_on
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Context, ParameterMask, Personal, Personalisation, Upload


@dataclass(frozen=True)
class FedRep(Personalisation, ParameterMask):
    """Splits the model: each client first trains a head of its own, which it keeps, and then the body, which the server averages.

    With body b and head h_k of client k, whose T local steps end with B = max(1, round(body_share T)) on the body::

        h_k <- T - B steps on F_k(b, h_k) by h_k alone
        b_k <- B steps on F_k(b, h_k) by b alone        b <- sum_k p_k b_k

    The part that is not trained does not change: neither momentum nor weight decay moves it, and the body's momentum starts at 0.
    That is exact for SGD in one parameter group; Adam's step counter continues, and AdamW's decay enters the body's moments.
    BatchNorm's statistics move in both phases and belong to the body. The global model's own head never trains, so look at
    ``test/personal_accuracy_mean`` (set ``data.client_test``). For this measurement the authors train the heads once more at the
    end.

    Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021,
    https://arxiv.org/abs/2102.07078; https://github.com/lgcollins/FedRep.

    Args:
        head: regular expression for the names of a client's own parameters.
        body_share: share of the local steps for the body, in (0, 1). The authors take 1/11 for CIFAR-10 and 5/15 for CIFAR-100.

    Example:
        >>> FedRep().init_client({"model.body.weight": torch.ones(2), "model.head.weight": torch.ones(1)}, {}, None)
        {'head': {'model.head.weight': tensor([1.])}}
    """

    head: str = r"(^|\.)head\."
    body_share: float = option(0.1, "(0, 1)")

    excludes: ClassVar[Mapping[str, str]] = {
        "DENSE": "FedRep's clients keep their heads, and DENSE needs whole models to distil",
        "FedGen": "FedRep's clients keep their heads, and FedGen needs them to train its generator",
        **dict.fromkeys(
            ("FedCOG", "FedDC", "FedDyn", "FedProx", "FedPVR", "FedReg", "SCAFFOLD"),
            "it compares clients' models with the global model, whose head never trains beside FedRep",
        ),
        "LocalModels": "FedRep's clients keep their heads, and LocalModels needs whole models to measure",
    }

    def mask(self, params: Params, client: int) -> dict[str, Tensor]:
        return {name: torch.tensor(False) for name in params if re.search(self.head, name)}

    def init_server(self, params: Params) -> Slot:
        count = sum(1 for name in params if re.search(self.head, name))
        if not 0 < count < len(params):
            which = "none" if count == 0 else "all"
            names = ", ".join(params)
            raise ValueError(f"FedRep: head={self.head!r} matches {which} of the parameters' names: choose among {names}")
        return {}

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return {"head": {name: value for name, value in params.items() if re.search(self.head, name)}}

    def start(self, apply: Apply, params: Params, ctx: Context) -> tuple[Params, Slot]:
        return params | ctx.state["head"], {}

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        on_head = self._on_head(ctx)
        # The part that is not trained gets a gradient that cancels the optimiser's weight decay, so that it gathers no momentum.
        return {
            name: torch.where(on_head == (name in ctx.state["head"]), value, -ctx.optimisation.weight_decay * params[name])
            for name, value in gradient.items()
        }

    def after_step(self, apply: Apply, params: Params, before: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        on_head, old = self._on_head(ctx), ctx.state["head"]
        head = {name: torch.where(on_head, params[name], value) for name, value in old.items()}
        body = {name: torch.where(on_head, ctx.received.params[name], value) for name, value in params.items() if name not in old}
        return body | head, {"head": head}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        # The head is not sent: methods listed after this one see it unchanged.
        kept = ctx.state["head"]
        return Upload({name: torch.zeros_like(value) if name in kept else value for name, value in delta.items()}, ctx.state)

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(params | ctx.state["head"])

    def _on_head(self, ctx: Context) -> Tensor:
        # As tensors under both executors, so that both round the same way.
        device = next(iter(ctx.received.params.values())).device
        num_steps, step = (count_on(device, value) for value in (ctx.num_steps, ctx.step))
        return step < num_steps - (num_steps.float() * self.body_share).round().clamp(min=1)
