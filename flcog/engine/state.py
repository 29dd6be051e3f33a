"""The state that a round changes and a checkpoint saves: the server's, and what methods keep of each client."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch.utils import _pytree as pytree

from flcog.core.ledger import Ledger
from flcog.core.types import Params, Slot
from flcog.engine.program import num_bytes
from flcog.method import ClientView, Method, Uploads


@dataclass
class ServerState:
    """The global model, what methods keep at the server, the clients' reports, and the bytes sent so far.

    Args:
        params, buffers: the global model. Values are replaced, never changed in place.
        servers: each method's state, by its name.
        round: rounds done.
        ledger: bytes sent so far.
        reported: which clients have sent each method their report.
    """

    params: Params
    buffers: Params
    servers: dict[str, Slot]
    round: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    reported: dict[str, set[int]] = field(default_factory=dict)
    uploads: dict[str, Uploads] = field(default_factory=dict)
    """What single clients sent in the round in hand, for methods that also observe; let go of at its end, and in no checkpoint."""
    reports: dict[str, dict[int, Any]] = field(default_factory=dict)
    """The reports, by method and client; not in a checkpoint, but asked for again after a resume."""

    @contextmanager
    def undone_at(self, error: type[BaseException], sampled: Sequence[int]) -> Iterator[None]:
        """If this error leaves the block, the state is put back to what it was before. Values are replaced, never changed in place.

        Args:
            error: the one that stands for a round given up.
            sampled: the clients of that round.
        """
        round, params, ledger = self.round, self.params, self.ledger.copy()
        buffers, servers = dict(self.buffers), dict(self.servers)
        reported = {name: known.intersection(sampled) for name, known in self.reported.items()}
        try:
            yield
        except error:
            self.round, self.params, self.buffers, self.servers, self.ledger = round, params, buffers, servers, ledger
            for name, known in self.reported.items():
                known -= set(sampled) - reported.get(name, set())
            raise

    def ask_report(self, method: Method, client: ClientView) -> None:
        """Ask a client for its report to a method, once in its life; after a resume again, but its bytes count once."""
        reports = self.reports.setdefault(method.name, {})
        if client.id not in reports:
            reports[client.id] = method.report(client)
            if client.id not in self.reported.setdefault(method.name, set()):
                self.reported[method.name].add(client.id)
                self.ledger.add(method.name, up=sum(map(num_bytes, pytree.tree_leaves(reports[client.id]))))

    def reports_to(self, method: Method, clients: Iterable[int]) -> list[Any]:
        """These clients' reports to a method."""
        reports = self.reports.get(method.name, {})
        return [reports.get(client) for client in clients]


class ClientStates(Protocol):
    """What methods keep of each client between its rounds."""

    owner: dict[int, int]
    """The process on which each stateful client lives; the same on every process."""

    def get(self, client: int) -> dict[str, Slot]:
        """A client's slots by method, empty where it has none yet."""

    def fetch(self, clients: Sequence[int]) -> None:
        """Read these clients' states into memory: they are about to be asked for."""

    def put(self, client: int, slots: dict[str, Slot]) -> None:
        """Keep a client's new state."""
