"""Quadratics: closed forms, the paper's dissimilarity, and least squares."""

from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from datamodules.common import CPU, one_line
from flcog import FederatedTrainer
from flcog.datamodules import LeastSquares, Natural, Quadratics, Shuffled


def gradient(problem: Quadratics, k: int, x: Tensor) -> Tensor:
    """The gradient of client k's loss at x, by autograd through the model that would be trained."""
    federation = problem.federation
    client = LeastSquares(torch.nn.Linear(1, problem.dimension, bias=False, dtype=torch.float64))
    with torch.no_grad():
        client.model.weight.copy_(x[:, None])  # type: ignore[union-attr, operator]
    torch.set_default_dtype(torch.float64)
    inputs, targets = federation.load(federation.train, torch.from_numpy(federation.partition.client(k)), CPU)
    loss = client.per_example_loss(client(inputs), targets).mean()
    return torch.autograd.grad(loss, client.parameters())[0].squeeze(1)


@pytest.mark.parametrize("shuffled", [0.0, 0.3, 1.0])
def test_quadratics_in_closed_form(shuffled: float) -> None:
    problem = Quadratics(
        zeta=30.0, sigma=5.0, dimension=4, samples_per_client=20, num_clients=6, partitioner=Shuffled(shuffled, Natural())
    )
    gradients = torch.stack([gradient(problem, k, problem.optimum) for k in range(6)])
    torch.testing.assert_close(gradients.mean(0), torch.zeros(4, dtype=torch.float64), atol=1e-9, rtol=0)
    assert problem.dissimilarity == pytest.approx(gradients.square().sum(1).mean().item())
    for k in range(6):
        assert gradient(problem, k, problem.client_optima[k]).norm() < 1e-9
        difference = gradient(problem, k, problem.optimum + 1) - gradients[k]
        torch.testing.assert_close(difference, problem.curvatures[k].expand(4))


def test_quadratics_follow_the_paper() -> None:
    problem = Quadratics(zeta=50.0, sigma=20.0, num_clients=40, samples_per_client=200)
    federation = problem.federation
    assert federation.train.inputs.shape == (8000, 1) and federation.train.targets.shape == (8000, 25)
    assert problem.curvatures.tolist() == [i**2 for i in range(1, 41)]
    b = federation.train.targets.double().view(40, 200, 25)
    i = torch.arange(1, 41, dtype=torch.float64)
    within = b.std(1).square().mean(1).sqrt() * i * 25
    between = b.mean(1).square().mean(1).sqrt() * i * 25
    assert (within / 20 - 1).abs().max() < 0.1 and abs(between.square().mean().sqrt() / 50 - 1) < 0.1
    assert problem.noise == pytest.approx(20**2 / 25, rel=0.05)
    assert problem.dissimilarity == pytest.approx(50**2 / 25, rel=0.2)


def test_shuffling_quadratics_reduces_dissimilarity() -> None:
    problems = [Quadratics(sigma=0.0, num_clients=10, partitioner=Shuffled(p, Natural())) for p in (0.0, 0.5, 1.0)]
    own, half, mixed = (problem.dissimilarity for problem in problems)
    # Fedssyn's lemma, a factor of (1 - p)^2, holds on average over the random choices of the shuffled samples.
    assert half < 0.45 * own and mixed < 0.1 * own
    assert problems[0].noise < 1e-9 < problems[1].noise
    torch.testing.assert_close(problems[0].optimum, problems[2].optimum)
    # Curvatures become more equal: L_p <= (1 - p) L_max + p L_avg.
    assert problems[1].curvatures.max() < problems[0].curvatures.max()


def test_quadratics_are_fixed_by_their_seed() -> None:
    first, again, other = (Quadratics(seed=seed, num_clients=3).federation.train.targets for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    for options in ({"zeta": -1.0}, {"sigma": -1.0}, {"dimension": 0}, {"samples_per_client": 0}):
        with one_line(ValueError, "must be"):
            Quadratics(**options)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_one_full_step_a_round_finds_the_optimum(tmp_path: Path, executor: Literal["loop", "vmap"]) -> None:
    problem = Quadratics(zeta=50.0, num_clients=4, dimension=3, samples_per_client=5, batch_size=5)
    trainer = FederatedTrainer(
        rounds=12, local_steps=1, executor=executor, logger=False, accelerator="cpu", default_root_dir=str(tmp_path)
    )
    step = 1 / problem.curvatures.mean().item()
    client = LeastSquares(torch.nn.Linear(1, 3, bias=False), lambda parameters: torch.optim.SGD(parameters, lr=step))
    trainer.fit(client, problem)
    (weight,) = trainer.run.params.values()
    torch.testing.assert_close(weight.squeeze(1).double(), problem.optimum, atol=1e-5, rtol=1e-5)


def test_least_squares_scores() -> None:
    client = LeastSquares(torch.nn.Linear(1, 2, bias=False))
    outputs, targets = torch.tensor([[3.0, 4.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert client.per_example_loss(outputs, targets).tolist() == [12.5, 0]
    assert client.per_example_score(outputs, targets).tolist() == [5, 0]
    metrics = client.metrics(1)
    metrics.update(outputs, targets)
    assert metrics.compute()["mse"] == 25 / 4
