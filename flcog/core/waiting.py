"""How much other programs slow a run down, so that tables mark its times."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

WAITING = "time/waiting_share"
"""The name of the column in metrics.csv."""

DISTURBED = 0.1
"""Tables mark the times of runs that waited for more than this share."""


class CoreWaiting:
    """How long this process's threads have computed, and how long they have waited for a core, as Linux tells."""

    def __init__(self, folder: Path = Path("/proc/self/task")) -> None:
        self.folder = folder
        self.seen = self._read()

    def column(self) -> dict[str, float]:
        """The share of waiting since this object was made, from 0 to 1; empty on systems that do not measure it."""
        pairs = [(now, self.seen.get(thread, (0, 0))) for thread, now in self._read().items()]
        computed, waited = (sum(max(0, now[i] - then[i]) for now, then in pairs) for i in (0, 1))
        return {WAITING: waited / (computed + waited)} if computed > 0 else {}

    def _read(self) -> dict[str, tuple[int, int]]:
        """Nanoseconds of computing and of waiting, for each thread."""
        found = {}
        with suppress(OSError):
            for thread in self.folder.iterdir():
                with suppress(OSError, ValueError):
                    computed, waited, *_ = (thread / "schedstat").read_text().split()
                    found[thread.name] = (int(computed), int(waited))
        return found


def share_of_waiting(rows: Sequence[Mapping[str, float]]) -> float:
    """The share of waiting over all timed rounds of a run; 0 if it was not measured."""
    timed = [(row["time/round"], row[WAITING]) for row in rows if WAITING in row and "time/round" in row]
    total = sum(time for time, _ in timed)
    return sum(time * share for time, share in timed) / total if total > 0 else 0.0
