"""The Dirichlet splits of the literature, one sample or one class at a time, as the papers describe them. They do not import flcog.

They draw other random numbers than flcog does, so tests compare statistics of many splits. Each function returns
one array of labels per client.
"""

import numpy as np

Clients = list[np.ndarray]


def niid_bench(labels: np.ndarray, num_clients: int, beta: float, rng: np.random.Generator) -> Clients:
    """Draws shares of each class. Clients with N / K samples or more get none, and the other shares are divided by their sum."""
    held: list[list[int]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        samples = [int(value) for value in labels if value == label]
        shares = rng.dirichlet([beta] * num_clients)
        for client in range(num_clients):
            if len(held[client]) >= len(labels) / num_clients:
                shares[client] = 0.0
        shares = shares / shares.sum()
        start = 0
        for client in range(num_clients):
            stop = int(shares[: client + 1].sum() * len(samples) + 1e-9)
            held[client] += samples[start:stop]
            start = stop
    return [np.array(own, dtype=int) for own in held]


def one_client_after_another(labels: np.ndarray, num_clients: int, beta: float, rng: np.random.Generator) -> Clients:
    """Each client draws its mix, and then its N / K labels one by one; a label without samples left is drawn again."""
    left = np.bincount(labels)
    clients = []
    for _ in range(num_clients):
        mix = rng.dirichlet([beta] * len(left))
        own = []
        for _ in range(len(labels) // num_clients):
            own.append(_draw(mix, left, rng))
        clients.append(np.array(own))
    return clients


def clients_side_by_side(labels: np.ndarray, sizes: list[int], beta: float, rng: np.random.Generator) -> Clients:
    """FedDyn: a random client that is not full yet draws one label from its mix, until all are full."""
    left = np.bincount(labels)
    mixes = [rng.dirichlet([beta] * len(left)) for _ in sizes]
    held: list[list[int]] = [[] for _ in sizes]
    while any(len(own) < size for own, size in zip(held, sizes, strict=True)):
        client = int(rng.integers(len(sizes)))
        if len(held[client]) < sizes[client]:
            held[client].append(_draw(mixes[client], left, rng))
    return [np.array(own) for own in held]


def _draw(mix: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> int:
    possible = np.where(left > 0, mix, 0.0)
    if possible.sum() == 0:
        possible = left.astype(float)
    label = int(np.searchsorted(np.cumsum(possible), rng.random() * possible.sum(), side="right"))
    left[label] -= 1
    return label


def sorted_shards(labels: np.ndarray, num_clients: int, per_client: int) -> list[frozenset[int]]:
    """The shards of McMahan et al. 2017, section 3: "sort the data by digit label, divide it into 200 shards of size 300"."""
    order = sorted(range(len(labels)), key=lambda sample: labels[sample])
    size = len(labels) // (num_clients * per_client)
    return [frozenset(order[start : start + size]) for start in range(0, num_clients * per_client * size, size)]
