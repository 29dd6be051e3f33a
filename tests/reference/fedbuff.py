"""Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022: a simulation of its events in numpy.

Client k maps the model that it receives to the model that it sends, and needs the same time in each round.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LocalMap = Callable[[np.ndarray], np.ndarray]


class Server:
    """The server of Algorithm 1; clients fill its free places in turn.

    Args:
        start: the first model.
        maps: the local training of each client.
        times: the seconds that each client needs.
        exponent: a of the weight (1 + s)^-a.
        lr, momentum: of the server's optimiser, which is torch's SGD for the gradient -d.
    """

    def __init__(
        self, start: np.ndarray, maps: Sequence[LocalMap], times: Sequence[float], exponent: float, lr: float, momentum: float
    ) -> None:
        self.model, self.maps, self.times = start, maps, times
        self.exponent, self.lr, self.momentum, self.velocity = exponent, lr, momentum, np.zeros_like(start)
        self.version, self.started, self.turn, self.last = 0, 0, 0, 0
        self.events: list[tuple[float, int, int, int, np.ndarray]] = []
        self.staleness: list[list[int]] = []
        self.ends: list[float] = []

    def start(self, busy: set[int], now: float) -> int:
        """Start the first client in turn that is not busy."""
        client = next(k for k in ((self.turn + i) % len(self.maps) for i in range(len(self.maps))) if k not in busy)
        heapq.heappush(self.events, (now + self.times[client], self.started, client, self.version, self.model))
        self.started, self.last = self.started + 1, client
        return client

    def step(self, buffer: list[tuple[float, int, int, int, np.ndarray]]) -> None:
        total: Any = 0
        for _, _, client, version, received in buffer:
            total = total + (1 + self.version - version) ** -self.exponent * (self.maps[client](received) - received)
        self.velocity = self.momentum * self.velocity + total / len(buffer)
        self.model = self.model + self.lr * self.velocity
        self.staleness.append([self.version - event[3] for event in buffer])
        self.ends.append(buffer[-1][0])
        self.version, self.turn = self.version + 1, (self.last + 1) % len(self.maps)

    @property
    def flying(self) -> set[int]:
        return {event[2] for event in self.events}


def filled_after_steps(server: Server, concurrency: int, buffer: int, steps: int) -> None:
    """Fill all free places after each step of the server."""
    now = 0.0
    for _ in range(steps):
        while len(server.events) < concurrency:
            server.start(server.flying, now)
        arrived = [heapq.heappop(server.events) for _ in range(buffer)]
        now = arrived[-1][0]
        server.step(arrived)


def filled_at_a_rate(server: Server, concurrency: int, buffer: int, steps: int, rate: float) -> None:
    """Start client i at the time i / rate, if fewer clients train then; a client starts once between two steps."""
    arrived: list[tuple[float, int, int, int, np.ndarray]] = []
    number = 0
    while server.version < steps:
        if server.events and server.events[0][0] <= number / rate:
            arrived.append(heapq.heappop(server.events))
            if len(arrived) == buffer:
                server.step(arrived)
                arrived = []
            continue
        busy = server.flying | {event[2] for event in arrived}
        if len(server.events) < concurrency and len(busy) < len(server.maps):
            server.start(busy, number / rate)
        number += 1
