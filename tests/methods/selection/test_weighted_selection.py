"""WeightedSelection draws clients systematically, with probabilities proportional to their sizes."""

from functools import partial

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import SIZES
from reference import fedavg, horvitz_thompson
from reference.common import Client

from flcog.callbacks import WeightedSelection
from flcog.callbacks.selection.fixed_number import systematic


def proportional(sizes: list[int], count: int) -> list[float]:
    """The probabilities min(1, c n_k). Bisection finds the c that makes their sum ``count``."""
    low, high = 0.0, float(count)
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if sum(min(1.0, c * size) for size in sizes) < count else (low, c)
    return [min(1.0, low * size) for size in sizes]


def probability(client: Client) -> float:
    return dict(zip(SIZES, proportional(list(SIZES), 5), strict=True))[client.num_samples]


CASES: dict[str, Case] = {
    "WeightedSelection": Case(
        WeightedSelection(unbiased=True),
        partial(horvitz_thompson.run, probability=probability, num_samples=sum(SIZES)),
        random=True,
    ),
    "WeightedSelection-by-samples": Case(WeightedSelection(), fedavg.run, random=True),
}


@pytest.mark.parametrize(
    ("sizes", "count"),
    [([1, 2, 3, 10], 1), ([1, 2, 3, 10], 2), ([1, 2, 3, 10], 3), (list(SIZES), 5), ([5, 5, 5], 3), ([7, 0, 2, 90, 0, 40], 3)],
)
def test_each_client_is_drawn_with_its_probability(sizes: list[int], count: int) -> None:
    vector, starts = torch.tensor(sizes), (np.arange(3000) + 0.5) / 3000
    expected, found = proportional(sizes, count), np.zeros(len(sizes))
    for start in starts:
        clients, probabilities = systematic(vector, np.cumsum(sizes), count, float(start))
        assert len(clients) == count and clients == sorted(set(clients))
        assert probabilities.tolist() == pytest.approx([expected[client] for client in clients])
        found[clients] += 1 / len(starts)
    assert found == pytest.approx(np.array(expected), abs=2e-3)
