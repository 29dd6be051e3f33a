"""The MNIST example of Opacus as a federation: each client has one sample, and a local step with learning rate 1 sends its gradient."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from harness import ROOT, RecordingTrainer, train
from torch.nn import functional as F

import flcog
from flcog.callbacks import DPFedAvg, FedAvgM, PoissonSampling
from flcog.data import Partition, Partitioner, Samples, Splits
from flcog.models import SampleConvNet

SETTINGS = yaml.safe_load((ROOT / "configs/studies/opacus-mnist.yaml").read_text())
EXPECTED = 8


class OneEach(Partitioner):
    """Client k has sample k."""

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        return Partition.from_assignment(np.arange(num_clients), num_clients)


class Images(flcog.FederatedDataModule):
    """Random images of ten classes, channels last, with one client per image."""

    num_classes = 10

    def __init__(self, count: int) -> None:
        super().__init__(count, OneEach(), batch_size=1)

    def load(self) -> Splits:
        inputs = torch.randn(self.num_clients, 28, 28, 1, generator=torch.Generator().manual_seed(0))
        inputs *= torch.linspace(0.01, 1, self.num_clients)[:, None, None, None]  # some gradients exceed the bound
        samples = Samples(inputs, torch.arange(self.num_clients) % 10)
        return Splits(samples, samples)


def options(name: str) -> dict[str, Any]:
    """The options of a callback in the shipped config."""
    listed = SETTINGS["trainer"]["callbacks"]
    return next(each.get("init_args", {}) for each in listed if each["class_path"].endswith(f".{name}"))


def trained(network: torch.nn.Module, rounds: int) -> RecordingTrainer:
    """The shipped config without noise on 20 images, 8 of them expected in a round."""
    optimizer = partial(torch.optim.SGD, **SETTINGS["model"]["init_args"]["optimizer"]["init_args"])
    methods = (
        PoissonSampling(**options("PoissonSampling")),
        DPFedAvg(**options("DPFedAvg") | {"noise_multiplier": 0.0, "repeatable": True}),
        FedAvgM(**options("FedAvgM")),
    )
    settings: dict[str, Any] = {"clients_per_round": EXPECTED, "local_steps": SETTINGS["trainer"]["local_steps"]}
    return train(*methods, module=flcog.Classifier(copy.deepcopy(network), optimizer), data=Images(20), rounds=rounds, **settings)


@pytest.mark.slow
def test_without_noise_fifty_steps_are_those_of_opacus() -> None:
    opacus = pytest.importorskip("opacus")
    network = SampleConvNet().double()
    trainer = trained(network, rounds=50)
    # Without functorch, Opacus 1.6.0 differs from autograd in the second convolution, whose windows leave out the input's last column.
    theirs = opacus.GradSampleModule(network, loss_reduction="mean", force_functorch=True)
    optimizer = opacus.optimizers.DPOptimizer(
        torch.optim.SGD(theirs.parameters(), lr=options("FedAvgM")["lr"]),
        noise_multiplier=0.0,
        max_grad_norm=options("DPFedAvg")["clip"],
        expected_batch_size=EXPECTED,
        loss_reduction="mean",
    )
    for clients in filter(len, trainer.recorded):
        inputs, targets = (torch.cat(parts) for parts in zip(*(client.batches[0] for client in clients), strict=True))
        optimizer.zero_grad()
        F.cross_entropy(theirs(inputs.double()), targets).backward()
        optimizer.step()
    for name, value in network.state_dict().items():
        torch.testing.assert_close(trainer.state[name], value, rtol=1e-5, atol=1e-7)


def test_without_noise_it_is_descent_by_clipped_gradients_of_samples() -> None:
    """Abadi et al. 2016, algorithm 1: w <- w - lr / (q N) sum_i g_i min(1, C / ||g_i||), the sum over a Poisson sample."""
    clip, lr = options("DPFedAvg")["clip"], options("FedAvgM")["lr"]
    network = SampleConvNet().double()
    trainer = trained(network, rounds=6)

    weights, shortened = list(network.parameters()), []
    for clients in trainer.recorded:
        total = [torch.zeros_like(weight) for weight in weights]
        for client in clients:
            ((inputs, targets),) = client.batches
            gradient = torch.autograd.grad(F.cross_entropy(network(inputs.double()), targets), weights)
            norm = float(torch.cat([part.flatten() for part in gradient]).norm())
            shortened.append(norm > clip)
            for sum_, part in zip(total, gradient, strict=True):
                sum_ += part * min(1.0, clip / norm)
        with torch.no_grad():
            for weight, sum_ in zip(weights, total, strict=True):
                weight -= lr / EXPECTED * sum_
    assert any(shortened) and not all(shortened)
    assert len({len(clients) for clients in trainer.recorded}) > 1, "cohorts vary in size, and the divisor does not"
    for name, value in network.state_dict().items():
        torch.testing.assert_close(trainer.state[name], value, rtol=1e-6, atol=1e-8)
