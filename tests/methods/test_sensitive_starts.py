"""A unit of zeros before BatchNorm and ReLU: at this kink of the network, the last digit of a weight decides the result."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, classifier, distance, problem_of, train
from reference import fedavg, fedexp
from reference.common import Problem, State
from torch import Tensor, nn

import flcog
from flcog.callbacks import FedDecorr, FedExP, FedPVR, Stragglers
from flcog.method import Method
from flcog.models import FeatureModel

STEEP = partial(torch.optim.SGD, lr=2.0)


class Kinked(FeatureModel):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(NUM_FEATURES, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU())
        self.num_features = 8
        self.head = nn.Linear(8, NUM_CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)


def with_a_unit_of(value: float) -> flcog.Classifier:
    """A classifier whose first unit has only weights of 0, except the first weight, which is ``value``."""
    module = classifier(STEEP, Kinked).double()
    module.model.body[0].weight.data[0] = torch.tensor([value] + [0.0] * (NUM_FEATURES - 1))
    return module


@pytest.mark.parametrize(
    ("methods", "reference", "at_least"),
    [
        ([], fedavg.run, 15),
        ([FedExP(epsilon=1e-3)], partial(fedexp.run, epsilon=1e-3), 15),
        ([FedDecorr(beta=0.3), FedPVR(), FedExP(epsilon=1e-3), Stragglers(1, 20)], None, 50),
    ],
    ids=["FedAvg", "FedExP", "FedDecorr + FedPVR + FedExP + Stragglers"],
)
def test_a_last_digit_decides_at_a_kink(
    methods: list[Method], reference: Callable[[Problem], State] | None, at_least: float
) -> None:
    """A change of 1e-15 in one weight moves parameters by up to 52 in two rounds, and by as much in plain torch.

    At 0, ReLU has no slope and the unit never learns. Next to 0 it has one, which BatchNorm divides by sqrt(0 + 1e-5). With a rate
    of 2, the first step is of order 10, and FedExP's extrapolation doubles it. Neither a method nor flcog's engine causes the kink.
    """
    engine, plain = [], []
    for value in (0.0, 1e-15):
        module = with_a_unit_of(value)
        trainer = train(*methods, module=copy.deepcopy(module), rounds=2)
        engine.append(trainer.params)
        if reference is not None:
            state = reference(problem_of(trainer, module, STEEP))
            plain.append({name: state[name.removeprefix("model.")] for name in trainer.params})
    assert distance(*engine) > at_least
    if plain:
        assert distance(*engine) == pytest.approx(distance(*plain), rel=1e-6)
