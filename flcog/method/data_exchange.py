"""A data exchange: a method whose clients exchange data before round 1 by messages, which may come from other processes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flcog.data import Exchange, Federation
from flcog.method.method import Method

Ask = Callable[[str, Mapping[int, Any], Any], dict[int, Any]]
"""``ask(step, messages, like)`` sends each client its message, and returns the clients' answers. Both are sorted by client.

The server believes an answer only if it has the form of an example: ``like`` is the example, with a tensor or a
:class:`flcog.wire.envelope.Field` for each tensor, None if clients do not answer, or a function ``like(client, own)`` that returns the
example of a client. ``own`` are the server's own data, which have the form of all clients'.
"""


class ExchangeSummary(NamedTuple):
    """The server's knowledge of an exchange.

    Args:
        bytes_sent: bytes of all clients together, up and down.
        note: a sentence for the run's summary; empty for none.
        kind: makes the exchange that the server's own hooks read as ``client.exchanges[method]``.
    """

    bytes_sent: tuple[int, int]
    note: str = ""
    kind: Callable[..., Exchange] = Exchange


@dataclass
class DataHost:
    """The data of the clients that one process hosts, during an exchange.

    Args:
        federation: the data. An answer may replace them.
        seed: of the exchange, the same for the server and all clients.
        workspace: a folder for files that runs share; None to write no files.
        exchange: the result for later hooks, which an answer may set. They read it as ``client.exchanges[method]``.
        memory: values that answers keep for later answers.
    """

    federation: Federation
    seed: int
    workspace: Path | None = None
    exchange: Exchange | None = None
    memory: dict[str, Any] = field(default_factory=dict)

    def result(self) -> Exchange:
        """The exchange with the data that it has left."""
        return Exchange(self.federation) if self.exchange is None else replace(self.exchange, federation=self.federation)


@dataclass(frozen=True, kw_only=True)
class DataExchange(Method, protocol=True):
    """Exchanges data before round 1, in a part of the server and a part of the clients.

    Messages and answers are trees of tensors and primitives. The server never sees data, and clients see their own data alone.
    """

    @property
    def reads_all_data(self) -> bool:
        """Whether it has no part for the server, and reads the data of all clients in ``prepare_data``, which keeps them in one process."""
        return type(self).ask_clients is DataExchange.ask_clients

    @property
    def exchanges_data(self) -> bool:
        """Whether there is an exchange with the method's present arguments."""
        return True

    def ask_clients(self, ask: Ask, sizes: Tensor, rng: torch.Generator) -> ExchangeSummary:
        """The server's part. *Chain, once; plain Python.*

        Args:
            ask: sends messages to clients and returns their answers.
            sizes: the size of each client's training set, int64 [num_clients].
            rng: draws the server's random numbers. Its initial seed is ``host.seed``.
        """
        raise NotImplementedError

    def answer(self, step: str, messages: Mapping[int, Any], host: DataHost) -> dict[int, Any]:
        """The clients' part: the answers of all clients that a process hosts to one of the server's messages. *Plain Python.*

        Args:
            step: the name of the step, as the server asked.
            messages: by client.
            host: the clients' data.
        """
        raise NotImplementedError

    def prepare_data(self, federation: Federation, rng: torch.Generator, workspace: Path | None) -> Exchange:
        """Both parts in one process, which hosts all clients. *Chain, once; plain Python.*

        Later hooks of the method read the result as ``client.exchanges[self.name]``, and observers read it as
        ``run.method_record(name).exchange``. Files that several runs can share belong under ``workspace``. If it is None, the method must
        not write.
        """
        if not self.exchanges_data:
            return Exchange(federation)
        host = DataHost(federation, rng.initial_seed(), workspace)
        sizes = torch.from_numpy(federation.partition.sizes)
        summary = self.ask_clients(lambda step, messages, like: self.answer(step, messages, host), sizes, rng)
        return replace(host.result(), bytes_sent=summary.bytes_sent)
