"""Measure how fast a run's machine is and how much other programs slow it down, so that times are compared only between equals."""

import hashlib
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

CALIBRATION, WAITING = "time/calibration", "time/waiting_share"
"""The names of the columns in metrics.csv."""

EVERY = 5.0
"""Seconds of training between two measurements of the machine's speed."""

COMPARABLE = 1.25
"""Times are compared if the machine's speeds differ by at most this factor."""

DISTURBED = 0.1
"""Tables mark the times of runs that waited for more than this share."""

_BLOCK, _REPEATS = bytes(1 << 20), 4


class Calibration:
    """Measures a fixed piece of work between rounds: SHA-256 of four MiB, a few milliseconds on one core without torch."""

    def __init__(self) -> None:
        self._last = -math.inf

    def column(self) -> dict[str, float]:
        """The seconds of the work; empty if it was measured less than five seconds ago."""
        began = time.perf_counter()
        if began - self._last < EVERY:
            return {}
        self._last = began
        for _ in range(_REPEATS):
            hashlib.sha256(_BLOCK)
        return {CALIBRATION: time.perf_counter() - began}


def speed_of(rows: Sequence[Mapping[str, float]]) -> float:
    """The mean seconds of the work over a run; NaN if it was not measured."""
    measured = [row[CALIBRATION] for row in rows if CALIBRATION in row]
    return statistics.fmean(measured) if measured else math.nan


def comparable(ours: float, theirs: float) -> bool:
    """Whether two runs had equally fast machines, by their mean seconds of the work."""
    return ours <= COMPARABLE * theirs and theirs <= COMPARABLE * ours


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
