"""Measure the speed of the machine during a run, so that times are compared only between runs on equally fast machines."""

import hashlib
import math
import statistics
import time
from collections.abc import Mapping, Sequence

COLUMN = "time/calibration"
"""The name of the column in metrics.csv."""

EVERY = 5.0
"""Seconds of training between two measurements."""

COMPARABLE = 1.25
"""Times are compared if the machine's speeds differ by at most this factor."""

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
        return {COLUMN: time.perf_counter() - began}


def speed_of(rows: Sequence[Mapping[str, float]]) -> float:
    """The mean seconds of the work over a run; NaN if it was not measured."""
    measured = [row[COLUMN] for row in rows if COLUMN in row]
    return statistics.fmean(measured) if measured else math.nan


def comparable(ours: float, theirs: float) -> bool:
    """Whether two runs had equally fast machines, by their mean seconds of the work."""
    return ours <= COMPARABLE * theirs and theirs <= COMPARABLE * ours
