"""A parameter mask: a method whose clients share only parts of the model's parameters with the server."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from flcog.core.types import Params
from flcog.method.method import Method


@dataclass(frozen=True, kw_only=True)
class ParameterMask(Method, protocol=True):
    """Selects the parts of the parameters that a client receives and sends. If a run has several masks, all of them apply."""

    def mask(self, params: Params, client: int) -> Mapping[str, Tensor]:
        """A boolean tensor for each parameter that the client with this number does not share whole. *And; plain Python.*

        ``torch.tensor(False)`` lets the client train a parameter without sending it. The mask alone does not store the trained value,
        so the next round starts from the global value again. To keep it, return it as state from ``finish_client``, and put it back
        in ``start``, as FedRep does with its heads.

        A mask that broadcasts to the parameter's shape makes the client's model smaller. All other entries are 0 while the client
        trains, and are neither sent nor received. FlexLoRA cuts its adapters to a client's rank in this way.

        The masks of all clients must name the same parameters.
        """
        raise NotImplementedError
