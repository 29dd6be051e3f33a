"""The MNIST example of Opacus as a federation: clients with one sample each, whose local step with learning rate 1 sends its gradient."""

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
import yaml
from harness import ROOT, train
from torch.nn import functional as F

import flcog
from flcog.callbacks import DPFedAvg, FedAvgM, PoissonSampling
from flcog.data import Partition, Partitioner, Samples, Splits
from flcog.models import SampleConvNet

SETTINGS = yaml.safe_load((ROOT / "configs/studies/opacus-mnist.yaml").read_text())


class OneEach(Partitioner):
    """Client k has sample k."""

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        return Partition.from_assignment(np.arange(num_clients), num_clients)


class Images(flcog.FederatedDataModule):
    """Random images of ten classes, channels last, a client for each."""

    num_classes = 10

    def __init__(self, count: int) -> None:
        super().__init__(count, OneEach(), batch_size=1)

    def load(self) -> Splits:
        inputs = torch.randn(self.num_clients, 28, 28, 1, generator=torch.Generator().manual_seed(0))
        inputs *= torch.linspace(0.01, 1, self.num_clients)[:, None, None, None]  # some gradients within the bound, others beyond
        samples = Samples(inputs, torch.arange(self.num_clients) % 10)
        return Splits(samples, samples)


def options(name: str) -> dict[str, Any]:
    """The options of a callback in the shipped config."""
    listed = SETTINGS["trainer"]["callbacks"]
    return next(each.get("init_args", {}) for each in listed if each["class_path"].endswith(f".{name}"))


def test_without_noise_it_is_descent_by_clipped_gradients_of_samples() -> None:
    """Abadi et al. 2016, algorithm 1: w <- w - lr / (q N) sum_i g_i min(1, C / ||g_i||), the sum over a Poisson sample."""
    expected, clip, lr = 8, options("DPFedAvg")["clip"], options("FedAvgM")["lr"]
    network = SampleConvNet().double()
    module = flcog.Classifier(
        copy.deepcopy(network), partial(torch.optim.SGD, **SETTINGS["model"]["init_args"]["optimizer"]["init_args"])
    )
    methods = (
        PoissonSampling(**options("PoissonSampling")),
        DPFedAvg(**options("DPFedAvg") | {"noise_multiplier": 0.0, "repeatable": True}),
        FedAvgM(**options("FedAvgM")),
    )
    local_steps = SETTINGS["trainer"]["local_steps"]
    trainer = train(*methods, module=module, data=Images(20), rounds=6, clients_per_round=expected, local_steps=local_steps)

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
                weight -= lr / expected * sum_
    assert any(shortened) and not all(shortened)
    assert len({len(clients) for clients in trainer.recorded}) > 1, "cohorts vary in size, and the divisor does not"
    for name, value in network.state_dict().items():
        torch.testing.assert_close(trainer.state[name], value, rtol=1e-6, atol=1e-8)
