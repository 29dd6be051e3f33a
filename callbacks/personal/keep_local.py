"""KeepLocal and Freeze: parts of the model that stay at each client, and parts that nobody trains."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flcog.callbacks.parts.parameters import by_name, check_some
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import Context, LocalParts, ParameterMask
from flcog.models.lora import Adapter

Parts = str | Sequence[str] | Callable[[nn.Module], Iterable[str]]


@dataclass(frozen=True)
class KeepLocal(LocalParts):
    """Keeps parts of the model at each client, which trains them with the rest and never sends them.

    The server averages the shared parameters x alone; client k keeps its own parameters h_k from round to round::

        (x_k, h_k) <- local steps on F_k(x, h_k)        x <- sum_k p_k x_k

    With ``parts: head`` this is FedPer, with ``parts: body`` LG-FedAvg, with ``parts: BatchNorm`` FedBN, whose statistics stay as well:
    in the evaluation they are those of the client's own samples. Other methods of the run act on the shared parameters. The global
    model's own values of the kept parts never train, so look at ``test/personal_accuracy_mean`` (set ``data.client_test``). A client
    that has not trained yet has the initial values.

    Arivazhagan et al., Federated Learning with Personalization Layers, 2019, https://arxiv.org/abs/1912.00818 (FedPer); Liang et al.,
    Think Locally, Act Globally, 2020, https://arxiv.org/abs/2001.01523 (LG-FedAvg); Li et al., FedBN: Federated Learning on Non-IID
    Features via Local Batch Normalization, ICLR 2021, https://arxiv.org/abs/2102.07623.

    Args:
        parts: ``head``, ``body``, ``BatchNorm`` or ``adapters`` (LoRA's), a regular expression for names of parameters, or a list of
            these; from Python also a function of the module that returns names.

    Example:
        >>> import flcog
        >>> sorted(KeepLocal("head").local(flcog.models.MLP(4, (8,), 3)))
        ['head.bias', 'head.weight']
    """

    parts: Parts = "head"

    excludes = {
        **dict.fromkeys(("DENSE", "FedGen", "LocalModels"), "it needs whole models, and clients keep parts of theirs"),
        **dict.fromkeys(("FedPVR", "FedReg"), "it corrects all parameters by the global model's, and clients keep some"),
    }

    def local(self, module: nn.Module) -> Collection[str]:
        names, found = list(module.state_dict()), set[str]()
        kinds = {"BatchNorm": _NormBase, "adapters": Adapter}
        for part in [self.parts] if isinstance(self.parts, str) or callable(self.parts) else self.parts:
            if callable(part):
                found |= set(part(module))
            elif part in kinds:
                layers = [name for name, layer in module.named_modules() if isinstance(layer, kinds[part])]
                found |= {name for name in names if name.rpartition(".")[0] in layers}
            else:
                found |= by_name(part, names)
        return found


@dataclass(frozen=True)
class Freeze(ParameterMask):
    """Leaves parts of the model as they are at the start: nobody trains or sends them.

    With b the other parameters and h the frozen ones, which keep their initial values::

        b_k <- local steps on F_k(b, h) by b alone        b <- sum_k p_k b_k

    With ``parts: head`` and FineTune this is FedBABU: clients share a body that they train under a common random head, and each client
    trains the whole model when it is evaluated.

    Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022, https://arxiv.org/abs/2106.06042.

    Args:
        parts: ``head``, ``body``, a regular expression for names of parameters, or a list of these.
    """

    parts: str | Sequence[str] = "head"

    excludes = dict.fromkeys(("DENSE", "FedGen", "LocalModels"), "it needs whole models, and frozen parts are not sent")

    def mask(self, params: Params, client: int) -> dict[str, Tensor]:
        return dict.fromkeys(by_name(self.parts, params), torch.tensor(False))

    def init_server(self, params: Params) -> Slot:
        check_some("Freeze: parts", self.parts, by_name(self.parts, params), params)
        return {}

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        # Without a gradient frozen parameters gather no momentum, and add nothing to a norm that is clipped.
        return gradient | {name: torch.zeros_like(params[name]) for name in by_name(self.parts, params)}

    def after_step(self, apply: Apply, params: Params, before: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        return params | {name: before[name] for name in by_name(self.parts, params)}, ctx.state  # the optimiser may decay weights
