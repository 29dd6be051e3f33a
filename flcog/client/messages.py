"""The messages between server and clients: tasks and replies. They contain only tensors and primitive values."""

import operator
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from flcog.client.store import ClientStore
from flcog.core.types import Params, Slot
from flcog.data import Federation, Preprocess
from flcog.data.label_statistics import MOST_LABELS, label_table
from flcog.method import Optimisation, RoundKeys
from flcog.method.client_view import Population
from flcog.wire.envelope import Envelope, Manifest
from flcog.wire.packing import message

Split = Literal["val", "test"]
"""A part of its samples that a client holds out."""


PRIVATE = ("delta", "buffers", "means", "totals")
"""The sums that clients of a private sealed sum send, the fields of an envelope. They send no weight, loss or length of their change."""


@message
class Download(NamedTuple):
    """The broadcast of a round, which all of its clients share.

    ``server`` holds, for each method that acts in this round, the part of its server state that clients receive. ``rates`` are the
    learning rates of the local optimiser's groups, and ``seed`` is the key of all random numbers of clients. With ``keys`` clients seal
    their replies.
    """

    round: int
    seed: int
    params: Params
    buffers: Params
    server: Mapping[str, Slot]
    rates: Sequence[float]
    optimisation: Optimisation
    keys: RoundKeys | None = None


@message
class ClientTask(NamedTuple):
    """The work of one client in a round, beside the broadcast.

    ``masks`` are the parts of parameters that the client shares with the server, if it does not share whole parameters. ``own`` are
    methods' messages to this client alone.
    """

    client: int
    num_steps: int
    weight: float
    masks: Mapping[str, Any] = {}
    own: Mapping[str, Slot] = {}


@message
class ClientReply(NamedTuple):
    """The reply of one or more clients that were trained together. Tensors have a leading client axis.

    ``masked_bytes`` are the bytes of each client's envelope that its masks remove, and ``masked_plain_bytes`` the same before encoding.
    ``seconds`` are those of each client's training.
    """

    clients: Sequence[int]
    envelope: Envelope
    manifest: Manifest
    masked_bytes: Sequence[int]
    masked_plain_bytes: Sequence[int]
    seconds: float = 0.0


@message
class RollCall(NamedTuple):
    """The first message of a runtime to the server: the clients that it hosts, and the sizes of their data.

    Vectors have an entry for each client number.

    ``sizes`` are those of training sets, int64, and 0 for clients on other runtimes; ``val`` and ``test`` are those of held-out parts.
    ``asked`` is the number of clients before methods merged some of them. The bins of a regression's target have ``bin_edges``, if the
    clients have agreed on them. ``data`` are further facts in which all data agree, such as the columns of a table: short texts, or
    lists of them. ``label_counts`` are the samples of each client and label, int64 [num_clients, labels], if a host shares them.
    """

    sizes: Tensor
    val: Tensor | None
    test: Tensor | None
    asked: int
    task: str
    num_classes: int
    bin_edges: Tensor | None = None
    class_names: Sequence[str] | None = None
    data: Mapping[str, Any] = {}
    label_counts: Tensor | None = None

    @classmethod
    def of(cls, federation: Federation, shares_labels: bool = False) -> "RollCall":
        """The clients of these data."""
        held_out = (federation.client_val, federation.client_test)
        val, test = (None if part is None else torch.from_numpy(part.sizes) for part in held_out)
        sizes, asked = torch.from_numpy(federation.partition.sizes), federation.split.num_clients
        of_inputs = federation.preprocess
        facts = {**federation.facts, **({"standardisation": of_inputs.fact} if isinstance(of_inputs, Preprocess) else {})}
        kind = (federation.task, federation.num_classes, federation.edges, federation.class_names)
        shares_labels = shares_labels and federation.train.labelled and federation.num_classes <= MOST_LABELS
        counts = torch.from_numpy(label_table(federation).toarray()) if shares_labels else None
        return cls(sizes, val, test, asked, *kind, facts, counts)

    @property
    def clients(self) -> list[int]:
        """The clients with data here."""
        clients: list[int] = self.sizes.nonzero().flatten().tolist()
        return clients

    @property
    def labels(self) -> dict[str, str]:
        """The name of each class, if they have names."""
        return {f"class_names[{label}]": name for label, name in enumerate(self.class_names or ())}

    @property
    def facts(self) -> dict[str, Any]:
        """Facts in which the data of all hosts agree, if they have them."""
        held_out = {f"client_{name}": "0" if getattr(self, name) is None else "a held-out part" for name in ("val", "test")}
        return {
            "num_clients": len(self.sizes),
            "task": self.task,
            **self.labels,
            "num_classes": self.num_classes,
            **held_out,
            **self.data,
        }

    @property
    def population(self) -> Population:
        """The facts that every client may know."""
        return Population(len(self.sizes), int(self.sizes.sum()), self.task, self.num_classes, self.bin_edges)


JOINS: Mapping[str, Any] = {"mean": operator.add, "sum": operator.add, "max": np.maximum, "min": np.minimum}
"""How the values of two hosts are put together, by the name of the reduction."""

POOLED = "pooled"
"""The reduction of figures that need all samples, such as a metric's. The figures of two hosts cannot be put together."""


@message
class Scores(NamedTuple):
    """The scores of a model on the parts that clients hold out.

    ``clients`` are their mean scores, float64 [num_clients]; NaN for clients without a part or on other runtimes. ``figures`` are the
    loss and the metrics on the union of all parts, if the server asked for them. ``joins`` has, for figures that are no means over all
    samples, the reduction, such as ``max``, and the weight per sample. Figures with the reduction ``pooled`` cannot be put together.
    """

    clients: Tensor
    figures: Mapping[str, float] = {}
    joins: Mapping[str, tuple[str, float]] = {}


class Question(NamedTuple):
    """A question of an evaluation: the name of a function of :class:`flcog.client.runtime.ClientRuntime`, and its arguments.

    - ``evaluate``, which returns :class:`Scores` on the clients' held-out parts. Its arguments are the model's parameters and buffers;
      the split; whether to return loss and metrics on the union of all parts instead of each client's score; and None, or the model's
      scores on the classes of a test set, which each client weights by its label counts.
    - ``personal_scores``, which returns the scores of clients' own models on their data. Its arguments are the broadcast, the method's
      name, the clients, the global parameters, from which clients without a state start, and the split.
    """

    name: Literal["evaluate", "personal_scores"]
    arguments: tuple[Any, ...]


class Clients(Protocol):
    """The server's interface to the clients, which may run in other processes. All arguments and results are serialisable."""

    store: ClientStore
    """The clients' states between rounds, if they run in this process; else the server's copy for checkpoints."""
    executor: Any
    """The :class:`flcog.client.executor.Executor` that trains the clients."""

    @property
    def here(self) -> Any:
        """The :class:`flcog.client.runtime.ClientRuntime`, if the clients run in this process; else None."""

    @property
    def may_be_lost(self) -> bool:
        """Whether a round continues without clients that send no reply, as beside a cutoff."""

    @property
    def stateful(self) -> bool:
        """Whether a method keeps state of each client, so that a client must stay where its state is."""

    def contact(self, received: Download, newcomers: Mapping[str, Sequence[int]]) -> dict[str, dict[int, Any]]:
        """The first-contact messages of new clients, by method. ``received.server`` is empty."""

    def train(self, received: Download, tasks: Sequence[ClientTask]) -> Generator[ClientReply, None, None]:
        """Send the broadcast once, and a task to each client. Their new states are provisional until :meth:`commit`."""

    def commit(self, clients: Sequence[int]) -> None:
        """Keep the provisional states of these clients, whose replies the server has accepted, and forget all others."""

    def ask(self, questions: Sequence[Question]) -> Iterable[Any]:
        """The answers to the questions of an evaluation, in order. A host of clients receives all of them in one message."""

    def losses(self, received: Download, clients: Sequence[int]) -> list[float]:
        """The mean loss of the broadcast model on each client's training data; NaN without an answer. ``received.server`` is empty."""

    def personal_model(self, received: Download, method: str, client: int, first: Params) -> tuple[Params, Params]:
        """A client's own parameters and buffers."""

    def snapshot(self) -> dict[int, dict[str, Slot]]:
        """The states of all clients with a state, for a checkpoint."""

    def restore(self, states: Mapping[int, dict[str, Slot]]) -> None:
        """Replace all states by the states of a checkpoint."""


def unsent_by(tasks: Sequence[ClientTask]) -> set[str]:
    """The parameters that clients train and do not send."""
    return {name for name, mask in tasks[0].masks.items() if mask.ndim == 0 and not mask} if tasks else set()
