"""Decides how many threads work: all, or one if steps are so short that threads wait for Python's lock."""

SHORT_STEP = 0.003
"""One client at a time is tried if a step takes at most this many seconds of a thread's time. LeNet's step has 1.2 ms of overhead, mostly
Python: out of 1.9 ms on 10 images, where threads gain nothing on two cores, and out of 5.8 ms on 64 images."""


class Pace:
    """Measures a run's own rounds: the first, which warms up, and four with all threads and one thread in turn.

    It settles early if steps are long. The number of threads changes no result.

    Args:
        most: the number of threads.
    """

    def __init__(self, most: int) -> None:
        self._turns, self._times = (most, most, 1, most, 1), list[float]()
        self.settled: int | None = None

    @property
    def at_once(self) -> int:
        """The number of clients at a time in the next round."""
        return self.settled or self._turns[len(self._times)]

    def took(self, seconds: float, work: float, steps: int) -> None:
        """Record the time of a round with ``at_once`` clients at a time.

        Args:
            seconds: its duration.
            work: the processor time of its threads, without the time that they waited.
            steps: the local steps of all its clients.
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
