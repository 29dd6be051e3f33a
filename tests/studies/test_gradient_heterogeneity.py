"""The noise, dissimilarity and shift of gradients agree with numpy, closed forms and Lemma 1 of Fedssyn's paper."""

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from gradient_heterogeneity import GradientHeterogeneity, measure
from harness import SIZES, TinyData, classifier, fit, make_trainer
from methods.fedssyn.test_fedssyn import TINY_VAE
from torch import nn

from flcog.callbacks import Fedssyn
from flcog.data import Federation
from flcog.datamodules import LeastSquares, Natural, Quadratics, Shuffled

pytestmark = pytest.mark.filterwarnings("error")

SGD = partial(torch.optim.SGD, lr=0.01)


def gradients(module: Any, federation: Federation, rows: np.ndarray) -> np.ndarray:
    """The gradient of each sample, by plain autograd in double precision."""
    network, values = module.model.double(), []
    for row in rows:
        inputs, targets = federation.train.inputs[row][None].double(), federation.train.targets[row][None]
        loss = nn.functional.cross_entropy(network(inputs), targets)
        values.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))]).numpy())
    return np.array(values)


def test_against_numpy() -> None:
    module = classifier()
    trainer = make_trainer(None, Fedssyn(generator=TINY_VAE, num_images=6))
    trainer.prepare(module, TinyData())
    federation, exchange = trainer.run.federation, trainer.run.engine.exchanges["Fedssyn"]
    figures = measure(trainer.run, chunk_size=5)
    assert figures == pytest.approx(measure(trainer.run, max_samples=1000), rel=1e-9)
    shared = gradients(module, federation, exchange.received.indices)
    expected: dict[str, float] = {"p": exchange.shares.mean(), "noise_shared": shared.var(0).sum()}
    for name, partition in (("", federation.partition), ("_before", TinyData().federation.partition)):
        clients = [gradients(module, federation, partition.client(k)) for k in range(8)]
        means = np.array([g.mean(0) for g in clients])
        expected[f"noise{name}"] = np.mean([g.var(0).sum() for g in clients])
        expected[f"dissimilarity{name}"] = means.var(0).sum()
    expected["shift"] = ((means.mean(0) - shared.mean(0)) ** 2).sum()
    p, zeta = expected["p"], expected["dissimilarity_before"]
    expected["dissimilarity_bound"] = (1 - p) ** 2 * zeta
    expected["noise_bound"] = (
        (1 - p) * expected["noise_before"] + p * expected["noise_shared"] + p * (1 - p) * (zeta + expected["shift"])
    )
    assert figures == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("p", "received"), [(1.0, SIZES), (0.06, (0, 1, 1, 1, 0, 1, 0, 1)), (1e-3, (0,) * 8)])
def test_clients_that_keep_or_get_nothing(p: float, received: tuple[int, ...]) -> None:
    module = classifier()
    trainer = make_trainer(None, Fedssyn(share="real", p=p))
    trainer.prepare(module, TinyData())
    federation = trainer.run.federation
    assert tuple(trainer.run.engine.exchanges["Fedssyn"].received.sizes) == received
    figures = measure(trainer.run)
    clients = [gradients(module, federation, federation.partition.client(k)) for k in range(8)]
    assert figures["noise"] == pytest.approx(np.mean([g.var(0).sum() for g in clients]), rel=1e-9)
    assert figures["dissimilarity"] == pytest.approx(np.array([g.mean(0) for g in clients]).var(0).sum(), rel=1e-9)
    assert np.isfinite(list(figures.values())).all() and ("noise_bound" in figures) == any(received)
    if p == 1:
        assert figures["dissimilarity_bound"] == 0 and figures["noise_bound"] == pytest.approx(figures["noise_shared"])


def quadratics(**options: Any) -> Quadratics:
    return Quadratics(num_clients=5, zeta=3.0, sigma=4.0, dimension=3, samples_per_client=40, **options)


def at(problem: Quadratics, *callbacks: Any, seed: int = 0) -> dict[str, float]:
    """The figures at the optimum of the clients' own data."""
    trainer = make_trainer(None, *callbacks, seed=seed)
    trainer.prepare(LeastSquares(nn.Linear(1, 3, bias=False), SGD), problem)
    (name,) = trainer.run.params
    trainer.run.params[name] = problem.optimum.double()[:, None]
    return measure(trainer.run)


def test_closed_forms_on_quadratics() -> None:
    for partitioner in (Natural(), Shuffled(0.3, Natural())):
        problem = quadratics(partitioner=partitioner)
        figures = at(problem)
        assert figures == pytest.approx({"noise": problem.noise, "dissimilarity": problem.dissimilarity}, rel=1e-6)


@pytest.mark.parametrize("p", [0.1, 0.6])
def test_the_lemma_holds_on_quadratics(p: float) -> None:
    """The lemma holds in expectation over the shuffled samples. D~ equals D except for the random draw."""
    problem = quadratics()
    figures = [at(problem, Fedssyn(share="real", p=p), seed=seed) for seed in range(8)]
    mean = {name: float(np.mean([row[name] for row in figures])) for name in figures[0]}
    assert mean["p"] == pytest.approx(p)
    assert mean["noise"] <= 1.02 * mean["noise_bound"]
    # Clients receive finitely many samples, which adds a difference of about the noise divided by the number of samples.
    slack = mean["noise_shared"] * p**2 / (p * 40) + mean["noise_before"] * (1 - p) ** 2 * p / (1 - p) / 40
    assert mean["dissimilarity"] <= 1.1 * (mean["dissimilarity_bound"] + slack)
    assert mean["dissimilarity_bound"] == pytest.approx((1 - p) ** 2 * problem.dissimilarity, rel=1e-5)
    # The bound is tight: the noise is at most a quarter below it.
    assert mean["noise"] > 0.75 * mean["noise_bound"]


def test_columns_and_bad_input(tmp_path: Path) -> None:
    observer = GradientHeterogeneity(every_n_rounds=2, max_samples=5)
    plain = fit(tmp_path, observer, rounds=2, eval_every=1)
    assert {name for name in plain.history[1] if "heterogeneity" in name} == {
        "heterogeneity/noise", "heterogeneity/dissimilarity"
    }  # fmt: skip
    assert not any("heterogeneity" in name for name in plain.history[0])
    without = fit(tmp_path, rounds=2, eval_every=1)
    assert all(torch.equal(plain.params[name], value) for name, value in without.params.items())
    shuffled = fit(tmp_path, Fedssyn(generator=TINY_VAE), observer, rounds=2, eval_every=1)
    assert len({name for name in shuffled.history[1] if "heterogeneity" in name}) == 9
    for name in ("every_n_rounds", "max_samples", "chunk_size"):
        with pytest.raises(ValueError, match=f"^GradientHeterogeneity: {name} must be at least 1; got 0$"):
            GradientHeterogeneity(**{name: 0})

    class Plain(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return SGD(self.parameters())

    with pytest.raises(ValueError, match="GradientHeterogeneity needs the loss of each sample"):
        fit(tmp_path, observer, module=Plain())  # type: ignore[arg-type]
