"""The messages between server and clients: a task down, a reply up. They contain tensors and primitives only."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from flcog.client.store import ClientStore
from flcog.core.types import Params, Slot
from flcog.method import Optimisation
from flcog.wire.envelope import Envelope, Manifest
from flcog.wire.packing import message


@message
class Received(NamedTuple):
    """The broadcast of a round, which all of its clients share.

    Args:
        round: counted from 0.
        seed: the run's, with which all of the clients' random numbers are keyed.
        params, buffers: the global model.
        server: for each method that acts in this round, the part of its server state that clients receive.
        rates: the learning rates of the local optimiser's groups.
        optimisation: the local optimiser as methods know it.
    """

    round: int
    seed: int
    params: Params
    buffers: Params
    server: Mapping[str, Slot]
    rates: Sequence[float]
    optimisation: Optimisation


@message
class ClientTask(NamedTuple):
    """The work of one client in a round, beside the broadcast.

    Args:
        client: its number.
        num_steps: local steps.
        weight: its aggregation weight.
        masks: the parts of parameters that the client shares with the server, where these are not whole.
    """

    client: int
    num_steps: int
    weight: float
    masks: Mapping[str, Any] = {}


@message
class ClientReply(NamedTuple):
    """The reply of one or more clients that were trained together. Tensors have a leading client axis.

    Args:
        clients: their numbers.
        envelope: all that they send, encoded.
        manifest: a description of each envelope.
        masked_bytes: for each client the bytes of the envelope that its masks leave out.
        faults: for clients whose new state holds a NaN or an infinity, the method that keeps it.
    """

    clients: Sequence[int]
    envelope: Envelope
    manifest: Manifest
    masked_bytes: Sequence[int]
    faults: Mapping[int, str] = {}


class Clients(Protocol):
    """The clients as the server reaches them, wherever they run."""

    store: ClientStore
    """Their states between rounds."""
    executor: Any
    """What trains them: a :class:`flcog.client.executor.Executor`, with a name and a number of clients at once."""

    @property
    def stateful(self) -> bool:
        """Whether a method keeps state of each client, so that a client must stay where its state is."""

    def train(self, received: Received, tasks: Sequence[ClientTask]) -> Generator[ClientReply, None, None]:
        """Send the broadcast once, and a task to each client. Their new states are provisional until :meth:`commit`."""

    def commit(self, clients: Sequence[int]) -> None:
        """Keep the provisional states of these clients, whose replies the server has accepted, and forget all others."""

    def contact(self, received: Received, newcomers: Mapping[str, Sequence[int]]) -> dict[str, dict[int, Any]]:
        """The first-contact messages of new clients, by method. ``received.server`` is empty."""

    def personal_model(self, received: Received, method: str, client: int, first: Params) -> tuple[Params, Params]:
        """A client's own parameters and buffers. ``first`` are the global parameters, for a client that has no state yet."""

    def personal_score(self, received: Received, method: str, client: int, first: Params, split: Literal["val", "test"]) -> float:
        """The score of a client's own model on the client's data."""
