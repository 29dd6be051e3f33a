"""The clients of a round and their messages, as hooks at the server see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flcog.core.randomness import make_rng
from flcog.core.types import Params
from flcog.functional.apply import Apply
from flcog.method.context import Optimisation


class ClientUpload(NamedTuple):
    """The upload of a single client, for methods that declare ``individual_uploads``."""

    client: int
    weight: float
    delta: Params
    buffers: Params
    mean: Mapping[str, Any]
    sum: Mapping[str, Any]


class Uploads(NamedTuple):
    """The uploads of all clients of a round, and the global model that they received."""

    params: Params
    buffers: Params
    clients: Sequence[ClientUpload]


class Messages(NamedTuple):
    """The messages of all clients to one method.

    Args:
        mean: weighted means over the clients.
        sum: sums over the clients.
        individual: the uploads of single clients, if the method declares ``individual_uploads``.
    """

    mean: Mapping[str, Any]
    sum: Mapping[str, Any]
    individual: Sequence[ClientUpload] = ()


@dataclass
class Cohort:
    """The clients of a round, as the server sees them.

    ``num_samples`` and ``weights`` are float64 in every precision, because shares of samples would lose digits in bfloat16. The weights
    sum to 1. If a selection's unbiased weights do not, the mean change is multiplied by their sum, ``total_weight``.

    Args:
        round: the number of finished rounds: 0 in the first round.
        clients: the numbers of the clients that take part in this round.
        num_clients: the number of all clients of the run.
        num_samples: the size of each of these clients' training sets, in the order of ``clients``.
        weights: their aggregation weights, in the same order.
        apply: the global model in training mode; ``apply.frozen(params, buffers)`` is a model in evaluation mode.
        buffers: the global model's buffers, such as BatchNorm's statistics.
        optimisation: the settings of the clients' optimiser in this round.
        metrics: the columns of this round's row until now; :meth:`log` adds one.
        seed: of the run, which :meth:`rng` uses.
        total_weight: the sum of a selection's unbiased weights; otherwise 1.
    """

    round: int
    clients: list[int]
    num_clients: int
    num_samples: Tensor
    weights: Tensor
    apply: Apply
    buffers: Params
    optimisation: Optimisation
    metrics: dict[str, float]
    seed: int
    total_weight: float = 1.0

    def log(self, name: str, value: Tensor | float) -> None:
        """Add a column to this round's row, such as ``fedexp/eta``."""
        self.metrics[name] = float(value)

    def rng(self, purpose: str) -> torch.Generator:
        """Randomness for the server's own work, keyed by seed, round and purpose.

        It draws on the CPU, so that a run on a GPU draws the same numbers: move what it drew to the parameters' device.
        """
        return make_rng(self.seed, self.round, "server", purpose)
