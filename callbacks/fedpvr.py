"""FedPVR: SCAFFOLD's correction on the last layers only."""

import re
from dataclasses import dataclass

import torch

from flcog.callbacks.parts.parameters import HEAD, check_some
from flcog.callbacks.scaffold import ControlVariates
from flcog.core.types import Params, Slot


@dataclass(frozen=True)
class FedPVR(ControlVariates):
    """Corrects local gradients as SCAFFOLD does, but only where clients differ most: in the classifier, not in the features.

    Client k steps along ``g - c_k + c`` on the chosen parameters and along ``g`` on the others. After K steps from x to y, with S
    of N clients in the round::

        c_k' = c_k - c + (x - y) / (K lr)
        c <- c + (1 / N) sum_S (c_k' - c_k)

    Clients keep and send these values only for the chosen parameters. K is counted as in :class:`~flcog.callbacks.SCAFFOLD`, and
    as there the estimate is meaningless for adaptive local optimisers, and lossy codecs need ``error_feedback``. (The authors' code
    uses momentum only on the other layers.)

    Li et al., On the Effectiveness of Partial Variance Reduction in Federated Learning with Heterogeneous Data, CVPR 2023,
    https://arxiv.org/abs/2212.02191.

    Args:
        layers: regular expression that the names of corrected parameters contain, e.g. ``"hidden|head"`` for all fully connected
            layers of :class:`flcog.models.VGG11`, as in the paper; None for the head. ``""`` is SCAFFOLD.

    Example:
        >>> FedPVR().init_server({"model.body.weight": torch.ones(2), "model.head.weight": torch.ones(1)})
        {'c': {'model.head.weight': tensor([0.])}}
    """

    layers: str | None = None

    def init_server(self, params: Params) -> Slot:
        pattern = HEAD if self.layers is None else self.layers
        c = {name: torch.zeros_like(value) for name, value in params.items() if re.search(pattern, name)}
        check_some("FedPVR: layers", pattern, c, params)
        return {"c": c}
