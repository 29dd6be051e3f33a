"""How many clients run side by side: as many as there are threads for, or one, where short steps only wait for Python's lock."""

SHORT_STEP = 0.003
"""Seconds of a thread's work for a step up to which one client at a time is tried. 1.2 ms of LeNet's step are there whatever the batch,
mostly Python: of 1.9 ms on 10 images, where threads win nothing on two cores, and of 5.8 ms on 64."""


class Pace:
    """Measures a run's own rounds: the first, which warms up, and four that take turns, unless steps turn out to be long.

    For those who give the same numbers however many clients run side by side.

    Args:
        most: clients side by side.
    """

    def __init__(self, most: int) -> None:
        self._turns, self._times = (most, most, 1, most, 1), list[float]()
        self.settled: int | None = None

    @property
    def at_once(self) -> int:
        """How many clients at a time the next round runs."""
        return self.settled or self._turns[len(self._times)]

    def took(self, seconds: float, work: float, steps: int) -> None:
        """A round has been run so.

        Args:
            seconds: how long it took.
            work: seconds that its threads worked for it, which those who wait for each other or for other programs do not.
            steps: local steps of all its clients.
        """
        if self.settled is not None:
            return
        most = self._turns[0]
        self._times.append(seconds / steps)
        if len(self._times) == 2 and work / steps > SHORT_STEP:
            self.settled = most
        elif len(self._times) == len(self._turns):
            _, *tried = self._times
            self.settled = 1 if min(tried[1::2]) <= min(tried[::2]) else most
