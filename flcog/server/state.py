"""The server's state, which a round changes and a checkpoint saves."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.utils import _pytree as pytree

from flcog.client.messages import Clients
from flcog.core.types import Params, Slot
from flcog.method import Method, Uploads
from flcog.wire.envelope import num_bytes
from flcog.wire.ledger import Ledger


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
    _newcomers: list[tuple[str, int]] = field(default_factory=list, repr=False)
    """The clients that have reported in the round in hand, by method."""

    def copy(self, round: int) -> "ServerState":
        """The state as it is, with nothing sent yet, in whose place another round can be tried."""
        reported = {name: set(clients) for name, clients in self.reported.items()}
        reports = {name: dict(values) for name, values in self.reports.items()}
        return ServerState(self.params, dict(self.buffers), dict(self.servers), round, reported=reported, reports=reports)

    @contextmanager
    def undone_at(self, error: type[BaseException]) -> Iterator[None]:
        """If this error leaves the block, the state is put back to what it was before. Values are replaced, never changed in place.

        Args:
            error: the one that stands for a round given up.
        """
        before = dataclasses.replace(self, ledger=self.ledger.copy(), buffers=dict(self.buffers), servers=dict(self.servers))
        self._newcomers = []
        try:
            yield
        except error:
            for name in ("round", "params", "buffers", "servers", "ledger"):
                setattr(self, name, getattr(before, name))
            for name, client in self._newcomers:
                self.reported[name].discard(client)
            raise

    def ask_reports(self, method: Method, clients: Sequence[int], runtime: Clients) -> None:
        """Ask clients for their report to a method, each once in its life; after a resume again, but its bytes count once."""
        reports, known = self.reports.setdefault(method.name, {}), self.reported.setdefault(method.name, set())
        new = [client for client in clients if client not in reports]
        for client, report in runtime.report(method.name, new, self.round).items() if new else ():
            reports[client] = report
            if client not in known:
                known.add(client)
                self._newcomers.append((method.name, client))
                self.ledger.add(method.name, up=sum(map(num_bytes, pytree.tree_leaves(report))))

    def reports_to(self, method: Method, clients: Iterable[int]) -> list[Any]:
        """These clients' reports to a method."""
        reports = self.reports.get(method.name, {})
        return [reports.get(client) for client in clients]
