"""The clients in flight in asynchronous rounds, and the broadcasts that they have received."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flcog.client.messages import ClientTask, Download
from flcog.method import Optimisation, Participants


class Flight(NamedTuple):
    """A client that trains.

    It has received the broadcast of ``round``, in which it started. ``since`` and ``until`` are the simulated times of its start and its
    arrival.
    """

    client: int
    round: int
    steps: int
    since: float
    until: float


class Flights(NamedTuple):
    """The starts and arrivals of an asynchronous round.

    ``tasks`` are those of the clients that have started, and ``arrivals`` are the round's clients in the order of their arrival, with the
    ``broadcasts`` that they have received. ``weight`` is that of each client as far as it is known at a start.
    """

    selected: Participants
    tasks: Sequence[ClientTask]
    arrivals: Sequence[Flight]
    broadcasts: Mapping[int, Download]
    weight: float

    def asked(self, tasks: Sequence[ClientTask]) -> list[tuple[Download, list[ClientTask]]]:
        """The broadcasts of some of the arrivals with their tasks, oldest first."""
        rounds = {flight.client: flight.round for flight in self.arrivals}
        parts: dict[int, list[ClientTask]] = {}
        for task in sorted(tasks, key=lambda task: rounds[task.client]):
            parts.setdefault(rounds[task.client], []).append(task)
        return [(self.broadcasts[part[0].client], part) for part in parts.values()]


class UploadSize(NamedTuple):
    """The bytes of an upload: of all of it, and of the parameters with a mask."""

    total: int
    params: Mapping[str, int]


@dataclass(frozen=True)
class Traffic:
    """The clients in flight between two rounds.

    ``flights`` come in the order of their arrival. ``upload`` is None before the first client has started.
    """

    flights: Sequence[Flight] = ()
    broadcasts: Mapping[int, Download] = field(default_factory=dict)
    upload: UploadSize | None = None

    def state_dict(self) -> dict[str, Any]:
        """The traffic in tensors and primitives."""
        broadcasts = {
            round: {"params": received.params, "buffers": received.buffers, "server": received.server}
            | {"rates": list(received.rates), "optimisation": list(received.optimisation)}
            for round, received in self.broadcasts.items()
        }
        upload = None if self.upload is None else [self.upload.total, dict(self.upload.params)]
        return {"flights": [list(flight) for flight in self.flights], "broadcasts": broadcasts, "upload": upload}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], seed: int) -> "Traffic":
        """The inverse of :meth:`state_dict`, in a run with this seed."""
        broadcasts = {
            round: Download(round, seed, **(saved | {"optimisation": Optimisation(*saved["optimisation"])}))
            for round, saved in state["broadcasts"].items()
        }
        upload = state["upload"]
        return cls([Flight(*flight) for flight in state["flights"]], broadcasts, upload and UploadSize(*upload))
