"""Facts about all clients that the server learns before the first round, and that clients may know of one another."""

from typing import NamedTuple

from torch import Tensor

from flcog.wire.packing import message


@message
class Population(NamedTuple):
    """Facts about all clients together, which every client may know.

    Args:
        num_clients: of the run.
        num_samples: the sum of the sizes of their training sets.
        task: the kind of label: ``classification``, ``multilabel`` or ``regression``.
        num_classes: labels, or bins of a regression's target.
        bin_edges: the inner edges of these bins, if clients cannot compute them because each has only its own data.
    """

    num_clients: int
    num_samples: int
    task: str
    num_classes: int
    bin_edges: Tensor | None = None

    @property
    def mean_size(self) -> float:
        """The mean size of the clients' training sets."""
        return self.num_samples / self.num_clients
