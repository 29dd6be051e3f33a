"""The number of rounds for which a private run has paid, in a file of its own."""

from math import inf
from pathlib import Path

from flcog.core.files import write_yaml
from flcog.core.yaml_files import load_yaml
from flcog.method import PrivateSum, method_of
from flcog.server.engine import Engine
from flcog.server.state import ServerState


class Spending:
    """Writes the number before a round is drawn. A killed run that repeats a round has released it twice, and pays twice.

    Repeatable noise has no file, because a repeated round releases the same numbers again.

    Args:
        path: the file, or None if nothing is written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @property
    def paid(self) -> float:
        """The number in the file, 0 without a file."""
        if self._path is None or not self._path.is_file():
            return 0
        content = load_yaml(self._path)
        paid = content.get("rounds_paid") if isinstance(content, dict) else content
        if not isinstance(paid, int | float) or isinstance(paid, bool) or not 0 <= paid < inf:
            raise ValueError(
                f"{self._path} must name the rounds_paid, a number of at least 0; got {paid!r}: count the rounds that were begun"
            )
        return float(paid)

    def record(self, engine: Engine, server: ServerState) -> None:
        """Write the number, in the first process."""
        private = method_of(engine.methods, PrivateSum)
        if private is not None and private.secret and self._path is not None and engine.processes.is_first:
            paid = private.paid(server.servers[private.name])
            write_yaml(self._path, {"rounds_paid": int(paid) if paid == int(paid) else paid})
