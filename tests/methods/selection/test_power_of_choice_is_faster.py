"""Power-of-choice needs fewer rounds to reach a loss in the synthetic setting of its paper."""

from functools import partial
from statistics import mean

import numpy as np
import pytest
import torch
from harness import make_trainer
from torch import nn

import flcog
from flcog.callbacks import EqualWeights, PowerOfChoice, WeightedSelection
from flcog.data import Partition, Partitioner, Samples, Splits
from flcog.method import Selection

pytestmark = pytest.mark.filterwarnings("error")

NUM_CLIENTS, NUM_FEATURES, NUM_CLASSES = 30, 60, 10


class Owners(Partitioner):
    def __init__(self, owners: np.ndarray) -> None:
        self.owners = owners

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        return Partition.from_assignment(self.owners, num_clients)


class Synthetic(flcog.FederatedDataModule):
    """Synthetic(1, 1) of Li et al., 2020, https://arxiv.org/abs/1812.06127, with log-normal sizes."""

    num_classes = NUM_CLASSES

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        sizes = np.minimum(rng.lognormal(4, 1.5, NUM_CLIENTS).astype(int) + 50, 2000)
        inputs, targets = [], []
        scale = np.arange(1, NUM_FEATURES + 1) ** -0.6  # standard deviations for variances of j^-1.2
        for size in sizes:
            shift, place = rng.normal(0, 1, 2)
            weight, bias = rng.normal(shift, 1, (NUM_FEATURES, NUM_CLASSES)), rng.normal(shift, 1, NUM_CLASSES)
            x = rng.normal(rng.normal(place, 1, NUM_FEATURES), scale, (size, NUM_FEATURES))
            inputs.append(x)
            targets.append((x @ weight + bias).argmax(1))
        self._samples = Samples(torch.from_numpy(np.concatenate(inputs)).float(), torch.from_numpy(np.concatenate(targets)))
        super().__init__(NUM_CLIENTS, Owners(np.repeat(np.arange(NUM_CLIENTS), sizes)), batch_size=50)

    def load(self) -> Splits:
        return Splits(self._samples)


def losses_of(method: Selection, seed: int, rounds: int) -> list[float]:
    """The loss of the global model on all samples after each round."""
    torch.manual_seed(seed)
    options = {"rounds": rounds, "clients_per_round": 3, "local_steps": 30, "seed": seed, "precision": "32-true"}
    trainer = make_trainer(None, method, EqualWeights(), **options)
    module = flcog.Classifier(nn.Linear(NUM_FEATURES, NUM_CLASSES), partial(torch.optim.SGD, lr=0.05))
    trainer.prepare(module, Synthetic(seed))
    sizes, found = trainer.run.federation.partition.sizes, []
    for _ in range(rounds):
        trainer.train_round()
        run = trainer.run
        losses = run.engine.clients.evaluator.losses(run.params, run.buffers, range(NUM_CLIENTS))
        found.append(float(np.average(losses, weights=sizes)))
    return found


def rounds_to(target: float, losses: list[float]) -> int:
    """The first round whose mean loss over it and the next five is below the target, or the number of rounds if there is none."""
    smooth = np.convolve(losses, np.ones(6) / 6, "valid")
    return int(np.argmax(smooth < target)) if (smooth < target).any() else len(losses)


@pytest.mark.slow
def test_it_needs_fewer_rounds_in_the_setting_of_its_paper() -> None:
    """Three of 30 clients train per round. Candidates make the start of training faster than random selection by size."""
    random, chosen = (
        mean(rounds_to(1.1, losses_of(method, seed, 48)) for seed in range(3))
        for method in (WeightedSelection(), PowerOfChoice(candidates=6))
    )
    assert chosen < 0.9 * random
