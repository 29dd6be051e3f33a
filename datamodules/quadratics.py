"""Quadratics: least-squares problems split over clients, whose optimum and constants are known in closed form."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import MeanSquaredError, MetricCollection

from flcog.client_module import ClientModule
from flcog.core.checks import at_least
from flcog.data import FederatedDataModule, Samples, Splits


class Quadratics(FederatedDataModule):
    r"""Client i's loss is a quadratic with curvature i^2; options set the differences between the clients' optima, and the noise.

        f(x) = 1/n sum_i f_i(x),   f_i(x) = 1/(2 n_i) sum_j || A_ij x - b_ij ||^2,   A_ij = i I_d,   i = 1 ... n
        mu_i ~ N(0, zeta^2 (i d)^-2 I_d),   b_ij ~ N(mu_i, sigma^2 (i d)^-2 I_d)

    Section 2.3 and A.3.2 of Li et al. 2024 (https://arxiv.org/abs/2306.13263), after Koloskova et al. 2020
    (https://arxiv.org/abs/2003.10422). A sample has i as its input [1] and b_ij as its target [d]. The model is a linear map from
    1 to d without bias, trained as :class:`LeastSquares`; its weight is x.

    The properties describe the clients as the partitioner made them, e.g. ``Shuffled(p, Natural())``, and are computed from the
    samples in double precision. Gradients are measured at the optimum, because the curvatures differ. In expectation the noise
    there is sigma^2 / d for each client. For large n the optimum is near 0, and the dissimilarity is zeta^2 / d.

    Args:
        zeta: how far the clients differ, >= 0.
        sigma: strength of the stochastic noise, >= 0.
        dimension: d.
        samples_per_client: n_i.
        seed: seed of the samples.

    Example:
        >>> problem = Quadratics(num_clients=4, zeta=3.0, dimension=2)
        >>> [int(curvature) for curvature in problem.curvatures]
        [1, 4, 9, 16]
    """

    task = "regression"
    num_classes = 1

    def __init__(
        self,
        zeta: float = 10.0,
        sigma: float = 0.0,
        dimension: int = 25,
        samples_per_client: int = 100,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        at_least(self, 0, zeta=zeta, sigma=sigma)
        at_least(self, 1, dimension=dimension, samples_per_client=samples_per_client)
        self.zeta, self.sigma, self.dimension = zeta, sigma, dimension
        self.samples_per_client, self.seed = samples_per_client, seed

    def load(self) -> Splits:
        rng = np.random.Generator(np.random.PCG64(self.seed))
        i = np.arange(1, self.num_clients + 1)
        scale = 1 / (i * self.dimension)
        means = self.zeta * scale[:, None] * rng.standard_normal((len(i), self.dimension))
        noise = rng.standard_normal((len(i), self.samples_per_client, self.dimension))
        b = means[:, None] + self.sigma * scale[:, None, None] * noise
        users = np.repeat(i - 1, self.samples_per_client)
        inputs = torch.from_numpy(users[:, None] + 1).float()
        return Splits(Samples(inputs, torch.from_numpy(b).float().flatten(0, 1), users))

    @property
    def curvatures(self) -> Tensor:
        """The Hessian of f_i is this number times I, for each client [n]. The Hessian of f has the mean of these numbers."""
        return self._moments[0]

    @property
    def optimum(self) -> Tensor:
        """The minimum of f [d]."""
        curvatures, slopes = self._moments
        return slopes.mean(0) / curvatures.mean()

    @property
    def client_optima(self) -> Tensor:
        """The minimum of each client's f_i [n, d]."""
        curvatures, slopes = self._moments
        return slopes / curvatures[:, None]

    @property
    def dissimilarity(self) -> float:
        """Mean over the clients of || grad f_i - grad f ||^2 at the optimum, where grad f = 0: zeta^2 of the theory."""
        curvatures, slopes = self._moments
        return (curvatures[:, None] * self.optimum - slopes).square().sum(1).mean().item()

    @property
    def noise(self) -> float:
        """Mean over the clients of the variance of one sample's gradient, at the optimum: sigma^2 of the theory."""
        clients = self._clients
        gradients = [a[:, None] * (a[:, None] * self.optimum - b) for a, b in clients]
        return float(np.mean([g.sub(g.mean(0)).square().sum(1).mean().item() for g in gradients]))

    @property
    def _clients(self) -> list[tuple[Tensor, Tensor]]:
        """Each client's a_j [n_i] and b_j [n_i, d]."""
        federation = self.federation
        rows = [torch.from_numpy(federation.partition.client(k)) for k in range(federation.num_clients)]
        return [(federation.train.gather(own).double().squeeze(1), federation.train.targets[own].double()) for own in rows]

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """f_i(x) = c_i/2 ||x||^2 - <s_i, x> + const: curvatures c [n] and slopes s [n, d]."""
        pairs = [(a.square().mean(), (a[:, None] * b).mean(0)) for a, b in self._clients]
        return torch.stack([c for c, _ in pairs]), torch.stack([s for _, s in pairs])


class LeastSquares(ClientModule):
    """Half the squared distance between a vector and its prediction: the client that trains on :class:`Quadratics`.

    Args:
        model: maps inputs to vectors, e.g. ``torch.nn.Linear(1, dimension, bias=False)``, whose weight is x.
        optimizer: a function that makes the local optimiser for each client and round.
        lr_schedule: factor on the learning rate, by round.
    """

    task = "regression"
    score_name = "distance"

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets.to(outputs.dtype)).square().sum(1) / 2

    def per_example_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets.to(outputs.dtype)).norm(dim=1)

    def metrics(self, num_classes: int) -> MetricCollection:
        return MetricCollection({"mse": MeanSquaredError()})
