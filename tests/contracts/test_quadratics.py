"""Methods on quadratic losses: linear algebra gives the point where each method converges.

Client k's loss is f_k(w) = 1/2 (w - b_k)^T A_k (w - b_k), and every gradient is exact, so K local steps are
y = b_k + (I - lr A_k)^K (x - b_k).
"""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from harness import train
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection

import flcog
from flcog.callbacks import SCAFFOLD, EqualWeights, FedAvgM, FedDisco, FedDyn, FedNova, FedProx
from flcog.callbacks.feddisco import discrepancy
from flcog.data import Partition, Partitioner, Samples, Splits
from flcog.method import Method

pytestmark = pytest.mark.filterwarnings("error")

DIMENSION, SIZES, LR = 3, (2, 4, 10), 0.3
SHARES = np.array(SIZES) / sum(SIZES)


def _problem() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    bases = [np.linalg.qr(rng.normal(size=(DIMENSION, DIMENSION)))[0] for _ in SIZES]
    return np.stack([q @ np.diag(rng.uniform(0.5, 2.5, DIMENSION)) @ q.T for q in bases]), rng.normal(
        size=(len(SIZES), DIMENSION)
    )


A, B = _problem()
IDENTITY = np.eye(DIMENSION)


class Point(nn.Module):
    """A model whose output is its parameter vector."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(DIMENSION))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.w.expand(len(inputs), -1)


class Quadratic(flcog.ClientModule):
    """The clients' quadratic losses. The target of a sample of client k is the number k."""

    task = "classification"
    score_name = "loss"

    def __init__(self, lr: float = LR) -> None:
        super().__init__(Point(), partial(torch.optim.SGD, lr=lr))
        self.curvatures, self.optima = torch.from_numpy(A), torch.from_numpy(B)

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        distance = outputs - self.optima[targets]
        return 0.5 * torch.einsum("bi,bij,bj->b", distance, self.curvatures[targets], distance)

    per_example_score = per_example_loss

    def metrics(self, num_classes: int) -> MetricCollection:
        return MetricCollection([MeanMetric()])


class ByTarget(Partitioner):
    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        return Partition.from_assignment(samples.targets.numpy(), num_clients)


class Numbers(flcog.FederatedDataModule):
    """Client k has SIZES[k] equal samples, so that a batch of any size gives the exact gradient."""

    num_classes = len(SIZES)

    def __init__(self) -> None:
        super().__init__(len(SIZES), ByTarget(), batch_size=1)

    def load(self) -> Splits:
        owners = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
        return Splits(Samples(owners[:, None].float(), owners))


def end_of(*methods: Method, start: np.ndarray | None = None, rounds: int = 2, lr: float = LR, **options: Any) -> np.ndarray:
    """The global model after some rounds with all clients."""
    module = Quadratic(lr)
    if start is not None:
        module.model.w.data = torch.tensor(start)
    trainer = train(*methods, module=module, data=Numbers(), clients_per_round=1.0, rounds=rounds, **options)
    return trainer.run.params["model.w"].numpy()


def assert_ends_at(point: np.ndarray, *methods: Method, **options: Any) -> None:
    """A run that starts at the point stays there, and a run that starts elsewhere comes nearer to it."""
    np.testing.assert_allclose(end_of(*methods, start=point, **options), point, rtol=1e-11)
    away = np.ones(DIMENSION)
    assert np.linalg.norm(end_of(*methods, start=point + away, rounds=5, **options) - point) < 0.5 * np.linalg.norm(away)


def local_map(k: int, steps: int, lr: float = LR, mu: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """P and q of y = P x + q, the result of ``steps`` steps on f_k(y) + mu/2 ||y - x||^2 from y = x."""
    inverse = np.linalg.inv(A[k] + mu * IDENTITY)
    contraction = np.linalg.matrix_power(IDENTITY - lr * (A[k] + mu * IDENTITY), steps)
    return contraction + (IDENTITY - contraction) @ (mu * inverse), (IDENTITY - contraction) @ inverse @ A[k] @ B[k]


def fixed_point(maps: list[tuple[np.ndarray, np.ndarray]], weights: np.ndarray) -> np.ndarray:
    """The x with sum_k weights_k (P_k x + q_k - x) = 0."""
    drift = sum(w * (IDENTITY - p) for w, (p, _) in zip(weights, maps, strict=True))
    return np.linalg.solve(drift, sum(w * q for w, (_, q) in zip(weights, maps, strict=True)))


def optimum(weights: np.ndarray) -> np.ndarray:
    """The w with sum_k weights_k grad f_k(w) = 0."""
    return np.linalg.solve(np.einsum("k,kij->ij", weights, A), np.einsum("k,kij,kj->i", weights, A, B))


EQUAL = np.full(len(SIZES), 1 / len(SIZES))


@pytest.mark.parametrize("methods", [(), (FedAvgM(beta=0.3),)], ids=["fedavg", "fedavgm"])
def test_fedavg_ends_beside_the_optimum(methods: tuple[Method, ...]) -> None:
    expected = fixed_point([local_map(k, 5) for k in range(3)], SHARES)
    assert_ends_at(expected, *methods, local_steps=5)
    assert np.linalg.norm(expected - optimum(SHARES)) > 0.05
    # With one local step, a round is a step of gradient descent, which is not biased.
    assert_ends_at(optimum(SHARES), *methods, local_steps=1)


@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_fedprox_ends_nearer(mu: float) -> None:
    near, far = (fixed_point([local_map(k, 8, 0.2, m) for k in range(3)], SHARES) for m in (mu, 0.0))
    assert_ends_at(near, FedProx(mu=mu), local_steps=8, lr=0.2)
    assert np.linalg.norm(near - optimum(SHARES)) < np.linalg.norm(far - optimum(SHARES))


@pytest.mark.parametrize(
    "methods",
    [(SCAFFOLD(),), (SCAFFOLD(server_lr=0.5), EqualWeights()), (FedDyn(alpha=1.0),)],
    ids=["scaffold", "scaffold-equal", "feddyn"],
)
@pytest.mark.slow
def test_the_true_optimum_is_reached(methods: tuple[Method, ...]) -> None:
    """The run reaches the optimum of the unweighted mean of the clients' losses, even if models are weighted by samples."""
    np.testing.assert_allclose(end_of(*methods, local_steps=5, rounds=40), optimum(EQUAL), rtol=1e-6)
    assert np.linalg.norm(fixed_point([local_map(k, 5) for k in range(3)], EQUAL) - optimum(EQUAL)) > 0.05


def test_fednova_undoes_unequal_steps() -> None:
    """Clients take one step per sample: 2, 4, 10. FedAvg counts a large client twice, by samples and by steps; FedNova counts it once."""
    once = SHARES / np.array(SIZES)
    maps = [local_map(k, size, 0.1) for k, size in enumerate(SIZES)]
    assert_ends_at(fixed_point(maps, SHARES), lr=0.1, local_epochs=1)
    assert_ends_at(fixed_point(maps, once), FedNova(), lr=0.1, local_epochs=1)
    # As the learning rate goes to 0, FedNova's bias vanishes and FedAvg's stays.
    for lr, bound in ((1e-2, 0.05), (1e-4, 5e-4)):
        maps = [local_map(k, size, lr) for k, size in enumerate(SIZES)]
        assert np.linalg.norm(fixed_point(maps, once) - optimum(SHARES)) < bound
        assert np.linalg.norm(fixed_point(maps, SHARES) - optimum(SHARES)) > 0.1


def test_feddisco_by_hand() -> None:
    """Clients with 30, 30 and 40 samples hold 2, 10 and 1 of ten classes, so their KL divergences from uniform are ln 5, 0 and ln 10."""
    counts = torch.zeros(3, 10)
    counts[0, :2], counts[1], counts[2, 4] = 15, 3, 40
    target = torch.full((10,), 0.1)
    d = [discrepancy(row, target) for row in counts]
    assert d == pytest.approx([math.log(5), 0, math.log(10)], abs=1e-12)
    cohort: Any = SimpleNamespace(num_samples=torch.tensor([30, 30, 40]))
    weights = FedDisco(a=0.5, b=0.1).weights(torch.ones(3), d, cohort)
    total = math.log(50)
    assert weights.tolist() == pytest.approx([0.4 - 0.5 * math.log(5) / total, 0.4, 0.5 - 0.5 * math.log(10) / total])
    assert (weights / weights.sum()).tolist() == pytest.approx([0.243, 0.5, 0.257], abs=5e-4)
    # l1: |1/2 - 1/10| twice and 1/10 eight times. l2: the root of their squares' sum. cosine: 1 - 0.1 / sqrt(1/2 * 1/10).
    assert [discrepancy(counts[0], target, metric) for metric in ("l1", "l2", "cosine")] == pytest.approx(
        [1.6, math.sqrt(0.4), 1 - 1 / math.sqrt(5)]
    )
    assert discrepancy(counts[2], counts.sum(0), "kl") == pytest.approx(math.log(100 / 43))
