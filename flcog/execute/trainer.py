"""The ClientTrainer protocol: it trains one client, or several that are stacked, and does not know which clients run elsewhere."""

from collections.abc import Sequence
from typing import Protocol

from flcog.apply import ModelFunction
from flcog.client.executor import Assignment, Result
from flcog.client.work import ClientWork
from flcog.settings import Compile


class ClientTrainer(Protocol):
    """Trains clients from the broadcast model to their results. A placement calls it for one group of clients after another."""

    @property
    def model(self) -> ModelFunction:
        """The client's model; on threads a copy of it."""

    @property
    def compiled(self) -> Compile:
        """Whether local steps are compiled, or captured as CUDA graphs."""

    def groups(self, works: Sequence[ClientWork]) -> list[list[ClientWork]]:
        """Split a round's clients into groups that may be stacked, each sorted in training order."""

    def announce(self, assignment: Assignment, works: Sequence[ClientWork]) -> None:
        """Tell the reader which clients train next, so that it can load their first samples meanwhile."""

    def train(self, assignment: Assignment, works: Sequence[ClientWork]) -> Result:
        """Train the clients. An error carries a note that names the clients and the round."""
