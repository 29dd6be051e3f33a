"""BetaVAE: a beta-VAE as a generator of labelled data. It decodes a class from samples around its mean latent."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flcog.callbacks.fedssyn.generators.base import DataGenerator, Log, Sampler, padded
from flcog.callbacks.fedssyn.generators.private_training import Budget, GeneratorTraining, PrivateTraining
from flcog.core.checks import option


class Posterior(NamedTuple):
    """A Gaussian over latents for each sample: [B, latent] each."""

    mean: Tensor
    log_variance: Tensor

    def draw(self) -> Tensor:
        noise = torch.randn(self.mean.shape).to(self.mean.device)
        return self.mean + (0.5 * self.log_variance).exp() * noise

    @property
    def divergence(self) -> Tensor:
        """KL from the standard normal distribution, [B].

        >>> Posterior(torch.ones(1, 2), torch.zeros(1, 2)).divergence
        tensor([1.])
        """
        return 0.5 * (self.mean.square() + self.log_variance.exp() - self.log_variance - 1).sum(1)


class Autoencoder(nn.Module):
    """Encoder and decoder of Burgess et al.: 4x4 convolutions of stride 2 down to 4x4 pixels, and two hidden layers of 256.

    For images of 64x64 these are the authors' four convolutions of 32 channels. Smaller images have fewer convolutions; sides
    that are not powers of two are padded with black. Rows of a table have only the hidden layers.
    """

    def __init__(self, shape: tuple[int, ...], latent: int, channels: int, hidden: int, num_conditions: int) -> None:
        super().__init__()
        self.shape, self.num_conditions = shape, num_conditions
        encoder: list[nn.Module] = []
        decoder: list[nn.Module] = []
        flat = shape[0]
        self.multiple = 1
        if len(shape) == 3:
            depth = max(1, math.ceil(math.log2(max(shape[1:]) / 4)))
            self.multiple = 2**depth
            sides = [-(-side // self.multiple) for side in shape[1:]]
            widths = [shape[0]] + [channels] * depth
            for i in range(depth):
                encoder += [nn.Conv2d(widths[i], channels, 4, 2, 1), nn.ReLU()]
            for i in reversed(range(depth)):
                decoder += [nn.ReLU(), nn.ConvTranspose2d(channels, widths[i], 4, 2, 1)]
            flat = channels * sides[0] * sides[1]
            encoder += [nn.Flatten()]
            decoder = [nn.ReLU(), nn.Linear(hidden, flat), nn.Unflatten(1, (channels, *sides)), *decoder]
        else:
            decoder = [nn.ReLU(), nn.Linear(hidden, flat)]
        self.encoder = nn.Sequential(*encoder)
        self.to_posterior = nn.Sequential(
            nn.Linear(flat + num_conditions, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2 * latent),
        )
        self.decoder = nn.Sequential(nn.Linear(latent + num_conditions, hidden), nn.ReLU(), nn.Linear(hidden, hidden), *decoder)

    def _condition(self, values: Tensor, labels: Tensor) -> Tensor:
        if not self.num_conditions:
            return values
        return torch.cat([values, F.one_hot(labels, self.num_conditions).to(values.dtype)], 1)

    def encode(self, inputs: Tensor, labels: Tensor) -> Posterior:
        flat = self.encoder(padded(inputs, self.multiple) if inputs.ndim == 4 else inputs)
        return Posterior(*self.to_posterior(self._condition(flat, labels)).chunk(2, dim=1))

    def decode(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Logits of pixels, or values of a table's row."""
        outputs = self.decoder(self._condition(latents, labels))
        return outputs[:, :, : self.shape[1], : self.shape[2]] if outputs.ndim == 4 else outputs

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Each sample's reconstruction error [B] and divergence [B]."""
        posterior = self.encode(inputs, labels)
        outputs = self.decode(posterior.draw(), labels)
        if inputs.ndim == 4:
            error = F.binary_cross_entropy_with_logits(outputs, inputs, reduction="none").flatten(1).sum(1)
        else:
            error = 0.5 * (outputs - inputs).square().sum(1)
        return error, posterior.divergence


@dataclass(frozen=True, kw_only=True)
class BetaVAE(DataGenerator):
    """An autoencoder with latents close to a normal distribution; a class's inputs are decoded from around its mean latent.

    With reconstruction error E (the cross-entropy of pixels, or half the squared error of a table's values), posterior q(z | x)
    with mean m(x), and N samples of class c::

        min  E + beta | KL(q(z | x) || N(0, I)) - C |,     C rising from 0 to ``capacity``
        mu_c = mean of m(x) over the class,     z ~ N(mu_c, std^2 I),     x~ = decoder(z)

    Appendix A.4 of Fedssyn (https://arxiv.org/abs/2306.13263) after Burgess et al. 2018 (https://arxiv.org/abs/1804.03599). Under
    differential privacy the means are noisy and cost privacy: each sample's m(x), cut to a norm of sqrt(latent), and its
    count of 1 are released together as one more step of the accountant.

    Args:
        latent: dimensions of z, >= 1.
        beta: weight of the divergence, >= 0; Fedssyn does not state its value.
        capacity: target of the divergence at the end of training, in nats, >= 0; Burgess et al. use beta 1000 and capacity 25.
        std: spread of the latents about their class's mean, > 0.
        conditional: whether encoder and decoder also receive the label; better for clients with several classes. Fedssyn's do
            not.
        channels: channels of the convolutions, >= 1.
        hidden: width of the hidden layers, >= 1.
        epochs: passes over the client's samples, >= 1.
        batch_size: samples in a step, >= 1.
        lr: learning rate of Adam, > 0.
        privacy: see :class:`PrivateTraining`; None trains without privacy.
    """

    latent: int = option(10, ">= 1")
    beta: float = option(1.0, ">= 0")
    capacity: float = option(0.0, ">= 0")
    std: float = option(1.0, "> 0")
    conditional: bool = False
    channels: int = option(32, ">= 1")
    hidden: int = option(256, ">= 1")
    epochs: int = option(100, ">= 1")
    batch_size: int = option(256, ">= 1")
    lr: float = option(1e-3, "> 0")
    privacy: PrivateTraining | None = None

    def train(self, inputs: Tensor, labels: Tensor, num_classes: int, log: Log) -> Sampler:
        network = Autoencoder(
            tuple(inputs.shape[1:]), self.latent, self.channels, self.hidden, num_classes if self.conditional else 0
        ).to(inputs.device)
        progress = [0.0]

        def loss(module: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
            error, divergence = module(inputs, labels)
            return error + self.beta * (divergence - progress[0] * self.capacity).abs()

        def epoch_done(epoch: int, figures: dict[str, float]) -> None:
            progress[0] = epoch / self.epochs
            log(epoch, figures)

        optimizer = torch.optim.Adam(network.parameters(), lr=self.lr)
        budget = GeneratorTraining(
            network, loss, optimizer, inputs, labels, self.epochs, self.batch_size, epoch_done, self.privacy, extra_releases=1
        ).run()
        network.eval()
        with torch.no_grad():
            latents = torch.cat([network.encode(x, y).mean for x, y in zip(inputs.split(500), labels.split(500), strict=True)])
        means = class_means(latents, labels, num_classes, budget)

        def sample(labels: Tensor) -> Tensor:
            noise = torch.randn(len(labels), self.latent).to(labels.device)
            outputs = network.decode(means[labels] + self.std * noise, labels)
            return outputs.sigmoid() if outputs.ndim == 4 else outputs

        return sample


def class_means(latents: Tensor, labels: Tensor, num_classes: int, budget: Budget | None = None) -> Tensor:
    """Mean latent of each class [num_classes, latent]; 0 for absent ones. With a budget, noisy means.

    >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]), 3).squeeze().tolist()
    [2.0, 0.0, 5.0]
    """
    membership = F.one_hot(labels, num_classes).to(latents.dtype)
    if budget is None:
        return membership.T @ latents / membership.sum(0).clamp(min=1)[:, None]
    longest = math.sqrt(latents.shape[1])
    cut = latents / latents.norm(dim=1, keepdim=True).clamp(min=longest)
    # A sample adds to its class's sum and count. Both have norms of at most 1, so together, divided by sqrt(2), they have a norm of
    # at most 1.
    row = torch.cat([cut, torch.ones_like(cut[:, :1])], 1) / math.sqrt(2)
    released = budget.release(membership[:, :, None] * row[:, None, :])
    return longest * released[:, :-1] / released[:, -1:].clamp(min=1 / math.sqrt(2))
