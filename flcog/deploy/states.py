"""The states of a node's clients between rounds, on the node's disk."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flcog.core.files import replacing
from flcog.core.types import Slot
from flcog.wire.packing import PackingError, pack, unpack


class NodeStates:
    """The states of a node's clients, two rounds deep: after the last round that the server accepted, and after the round in hand.

    The server names the last accepted round of each client with each request. So a lost reply, a restarted node and a server that
    resumes from its checkpoint all continue from the same state.

    Each run has a folder of its own in ``folder``.
    """

    def __init__(self, folder: Path) -> None:
        self._parent, self._folder = folder, folder
        self.owner: dict[int, int] = {}
        self._accepted: Mapping[int, int] = {}
        self._round, self._written = 0, set[int]()

    def turn_to(self, run: str, accepted: Mapping[int, int], round: int) -> None:
        """Prepare for a request.

        ``accepted`` is the last accepted round of each client that has one, counted from 0, and ``round`` the round in hand.
        """
        if not run.isalnum():  # it becomes the name of a folder
            raise ValueError(f"a run's name has letters and digits alone; got {run[:80]!r}")
        self._folder, self._accepted, self._round, self._written = self._parent / run, accepted, round, set[int]()

    @property
    def clients(self) -> list[int]:
        return sorted(self._accepted)

    def get(self, client: int) -> dict[str, Slot]:
        if client not in self._accepted:
            return {}
        path = self._path(client, self._accepted[client])
        try:
            states: dict[str, Slot] = unpack(path.read_bytes())
        except FileNotFoundError:
            raise ValueError(
                f"the state of client {client} after round {self._accepted[client] + 1} is not in {path.parent}: start the node with the "
                "state folder of that round, or start the run again from round 1"
            ) from None
        except PackingError as error:
            raise ValueError(
                f"{path} is damaged ({error}): restore it from a backup, or start the run again from round 1"
            ) from None
        return states

    def fetch(self, clients: Sequence[int]) -> None:
        """Do nothing, because :meth:`get` reads single files."""

    def put(self, client: int, states: dict[str, Slot]) -> None:
        """Keep a client's state after the round in hand, and remove states that no later request can need."""
        kept = {self._path(client, round) for round in (self._round, self._accepted.get(client, self._round))}
        with replacing(self._path(client, self._round), permissions=0o600) as file:
            file.write(pack(states))
        self._written.add(client)
        for path in self._folder.glob(f"client-{client}-round-*.bin"):
            if path not in kept:
                path.unlink()

    def carry_over(self, clients: Sequence[int]) -> None:
        """Keep the states of clients that have trained in this round without a new state."""
        for client in clients:
            if client not in self._written:
                self.put(client, self.get(client))

    def _path(self, client: int, round: int) -> Path:
        return self._folder / f"client-{client}-round-{round + 1}.bin"
