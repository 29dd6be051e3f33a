"""Fedssyn's study of shuffling counts the rounds of a run."""

import csv
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import make_trainer
from shuffling_study import main, problem_of
from torch import nn

from flcog.datamodules import LeastSquares, Natural, Quadratics, Shuffled


@pytest.mark.slow
def test_rounds_of_the_study_are_those_of_a_run() -> None:
    """The study's closed form counts the same rounds as the trainer on shuffled clients."""
    data = {"num_clients": 4, "dimension": 3, "samples_per_client": 10, "zeta": 10.0, "partitioner": Shuffled(0.3, Natural())}
    problem = problem_of(Quadratics(**data), local_steps=5, start=1.0)  # type: ignore[arg-type]
    assert np.allclose(problem.optimum, Quadratics(**data).optimum.numpy(), atol=1e-12)  # type: ignore[arg-type]
    for lr in (0.002, 0.02):
        module = LeastSquares(nn.Linear(1, 3, bias=False), partial(torch.optim.SGD, lr=lr))
        nn.init.ones_(module.model.weight)  # type: ignore[arg-type]
        trainer = make_trainer(None, local_steps=5, clients_per_round=1.0)
        trainer.prepare(module, Quadratics(**data, batch_size=10))  # type: ignore[arg-type]
        distances = []
        for _ in range(25):
            distances.append(
                float((next(iter(trainer.run.params.values())).flatten() - torch.from_numpy(problem.optimum)).square().sum())
            )
            trainer.train_round()
        targets = np.array([1.0, 0.5, 0.1, 0.05, 0.01, 1e-12])
        expected = [next((i for i, d in enumerate(distances) if d <= target), None) for target in targets]
        counted = problem.rounds(np.array([lr]), targets)[0]
        for ours, theirs in zip(counted, expected, strict=True):
            assert ours == theirs or (theirs is None and ours >= 25)
    assert counted[-1] == np.inf  # the rounds converge to a point beside the optimum, so the smallest target is never reached
    rounds, rates = problem.tuned(np.array([0.01]))
    lr = 1e-6
    powers = (1 - lr * problem.curvatures) ** 5
    at_rest = ((1 - powers) @ problem.optima) / (1 - powers).sum()  # x = mean_i x_i + powers_i (x - x_i)
    assert np.linalg.norm(at_rest - problem.optimum) == pytest.approx(lr * (5 - 1) / 2 * problem.drift, rel=1e-3)
    tried = [problem.rounds(np.array([lr]), np.array([0.01]))[0, 0] for lr in np.geomspace(1e-4, 0.05, 300)]
    assert rounds[0] == min(tried) and problem.rounds(rates, np.array([0.01]))[0, 0] == rounds[0]


@pytest.mark.slow
def test_the_study_of_shuffling(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["--p", "0", "0.2", "0.5", "--noise-rounds", "10", "--out", str(tmp_path / "study")])
    assert "rounds to ||x - x*||^2 <= 1.1e-06, 10 clients" in capsys.readouterr().out
    with (tmp_path / "study" / "rounds.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert [row["p"] for row in rows] == [0, 0.2, 0.5]
    first = rows[0]
    for row in rows[1:]:
        # Rounds fall faster than in proportion to the unshuffled share; the theory predicts fewer with L_p than with fixed L.
        assert row["rounds"] < (1 - row["p"]) * first["rounds"]
        assert row["rounds_theory"] < row["rounds_fixed_l"] < first["rounds"]
        assert row["zeta"] == pytest.approx(row["zeta_theory"], rel=0.05)
        assert row["smoothness"] == (1 - row["p"]) * 100 + row["p"] * 38.5
        # The counted rounds are in proportion to the drift, which falls about as (1 - p)^2.
        assert row["ratio"] == pytest.approx(row["ratio_drift"], rel=0.03)
        assert row["ratio_drift"] == pytest.approx((1 - row["p"]) ** 2, rel=0.15)
    assert (tmp_path / "study" / "figure.png").is_file()
    with (tmp_path / "study" / "noise.csv").open() as file:
        errors = list(csv.DictReader(file))
    assert len(errors) == 2 * 3 * 11
