"""Checks that a table has every round once, which fails where two processes trained one run or rows were lost."""

from collections.abc import Sequence
from itertools import pairwise


def fault_in(rounds: Sequence[float], done: int) -> str | None:
    """What is wrong with the rounds of a table's rows, the first thing only; None if they rise by one, to ``done`` at least.

    >>> fault_in([1, 2, 3, 4], done=3) is None  # the last was not checkpointed, and is run again
    True
    >>> fault_in([1, 2, 3, 2, 3], done=3)
    'row 4 is round 2, after round 3: two processes wrote it'
    >>> fault_in([1, 2], done=4)
    'rounds 3 to 4 are missing'
    """
    for row, (before, round) in enumerate(pairwise([0, *rounds]), start=1):
        if round <= before:
            return f"row {row} is round {round:g}, after round {before:g}: two processes wrote it"
        if round > before + 1:
            return _missing(before + 1, round - 1)
    last = rounds[-1] if rounds else 0
    return _missing(last + 1, done) if last < done else None


def _missing(first: float, last: float) -> str:
    return f"round {first:g} is missing" if first == last else f"rounds {first:g} to {last:g} are missing"
