"""Where a method multiplies rounding: that it is the method's own formula, in plain torch as in the engine, and not the engine."""

import copy
from typing import Any

import pytest
import torch
from harness import SGD, classifier, distance, problem_of, train
from reference import feddecorr

import flcog
from flcog.callbacks import Ditto, FedDecorr, FedDM, GradientNoise
from flcog.callbacks.feddecorr import decorrelation
from flcog.engine.aggregation import BadUpdate
from methods.cases_baselines_a import BatchNormFeatures
from methods.cases_baselines_b import FEDDM


def almost_without_a_feature(scale: float) -> flcog.Classifier:
    """A network with BatchNorm whose first feature varies by about ``scale``."""
    module = classifier(network=BatchNormFeatures).double()
    module.model.body[1].weight.data[0] = scale
    return module


def test_feddecorr_multiplies_what_nearly_vanishes_as_its_authors_formula_does() -> None:
    """1e-15 in one weight becomes 2e-6 in two rounds of four steps; the plain loop does the same, FedAvg does not."""
    engine, reference, plain = [], [], []
    for scale in (0.0, 1e-15):
        module = almost_without_a_feature(scale)
        trainer = train(FedDecorr(beta=0.3), module=copy.deepcopy(module), rounds=2)
        engine.append(trainer.state)
        reference.append(feddecorr.run(problem_of(trainer, module, SGD), beta=0.3))
        plain.append(train(module=almost_without_a_feature(scale), rounds=2).state)
    assert distance(*plain) < 1e-14
    assert distance(*engine) > 1e-9
    assert distance(*engine) == pytest.approx(distance(*reference), rel=1e-3)


def test_feddecorr_has_no_slope_where_a_feature_does_not_vary() -> None:
    """Its largest is where a deviation is about 1e-4, the root of the authors' 1e-8; below it falls to 0, and is never NaN."""
    features = torch.randn(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def slope(deviation: float) -> float:
        near = features.clone()
        near[:, 0] = 0.5 + deviation * features[:, 0]
        return float(torch.func.grad(decorrelation)(near)[:, 0].abs().max())

    assert slope(0.0) == 0
    assert slope(1e-8) < slope(1.0) * 10
    assert slope(1e-4) > slope(1.0) * 1000


def test_what_feddm_runs_beside_does_not_make_its_images_diverge() -> None:
    """FedDM takes no gradient of the model, so that neither noise in it nor clients' own models reach what it sends."""
    alone = train(FEDDM, rounds=2)
    beside = train(GradientNoise(sigma=2.0), Ditto(), FEDDM, rounds=2)
    assert distance(alone.params, beside.params) == 0


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_feddms_images_diverge_where_their_rate_is_too_large(executor: str) -> None:
    options: dict[str, Any] = {"rounds": 1, "local_steps": 100, "clients_per_round": 2, "executor": executor}
    tame, wild = (FedDM(images_per_class=2, image_lr=rate, rho=0.0, server_epochs=1) for rate in (0.02, 500.0))
    assert train(tame, **options).rows[0]["feddm/matching_loss"] < 10
    with pytest.raises(BadUpdate):
        train(wild, **options)


def test_executors_differ_under_feddm_by_what_a_last_digit_does() -> None:
    """Images that nearly diverge multiply rounding: one executor with one weight moved by 1e-15 differs from itself as much."""

    def run(**options: Any) -> flcog.FederatedTrainer:
        return train(FedDM(images_per_class=2, image_lr=1.5, rho=0.5, server_epochs=5, server_lr=0.1), rounds=3, **options)

    module = classifier().double()
    next(module.parameters()).data[0, 0] += 1e-15
    loop = run()
    by_executor, by_digit = distance(loop.params, run(executor="vmap").params), distance(loop.params, run(module=module).params)
    assert by_executor < 100 * max(by_digit, 1e-15)
