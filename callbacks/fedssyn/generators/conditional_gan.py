"""ConditionalGAN: a conditional GAN as a generator of labelled data."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flcog.callbacks.fedssyn.generators.base import DataGenerator, Log, Sampler, padded
from flcog.callbacks.fedssyn.generators.private_training import GeneratorTraining, PrivateTraining
from flcog.callbacks.parts.server_generators import descend
from flcog.core.checks import option


class Maker(nn.Module):
    """From noise [B, latent] and labels [B] to images in [0, 1] or rows of a table."""

    def __init__(self, shape: tuple[int, ...], latent: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.shape, self.embedding = shape, nn.Embedding(num_classes, latent)
        if len(shape) == 3:
            sides = [-(-side // 4) for side in shape[1:]]
            self.layers = nn.Sequential(
                nn.Linear(2 * latent, 2 * width * sides[0] * sides[1]),
                nn.Unflatten(1, (2 * width, *sides)),
                nn.GroupNorm(1, 2 * width),
                nn.ReLU(),
                nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
                nn.GroupNorm(1, width),
                nn.ReLU(),
                nn.ConvTranspose2d(width, shape[0], 4, 2, 1),
                nn.Sigmoid(),
            )
        else:
            self.layers = nn.Sequential(
                nn.Linear(2 * latent, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, shape[0])
            )

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        outputs = self.layers(torch.cat([noise, self.embedding(labels)], 1))
        return outputs[:, :, : self.shape[1], : self.shape[2]] if outputs.ndim == 4 else outputs


class Critic(nn.Module):
    """How real an input looks, given its label: f(x) + <h(x), e(y)> (Miyato and Koyama 2018, https://arxiv.org/abs/1802.05637)."""

    def __init__(self, shape: tuple[int, ...], width: int, num_classes: int) -> None:
        super().__init__()
        if len(shape) == 3:
            flat = 2 * width * -(-shape[1] // 4) * -(-shape[2] // 4)
            self.layers = nn.Sequential(
                nn.Conv2d(shape[0], width, 4, 2, 1),
                nn.LeakyReLU(0.2),
                nn.Conv2d(width, 2 * width, 4, 2, 1),
                nn.LeakyReLU(0.2),
                nn.Flatten(),
                nn.Linear(flat, 2 * width),
                nn.LeakyReLU(0.2),
            )
        else:
            self.layers = nn.Sequential(
                nn.Linear(shape[0], 2 * width), nn.LeakyReLU(0.2), nn.Linear(2 * width, 2 * width), nn.LeakyReLU(0.2)
            )
        self.head, self.embedding = nn.Linear(2 * width, 1), nn.Embedding(num_classes, 2 * width)

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        features = self.layers(padded(inputs, 4) if inputs.ndim == 4 else inputs)
        return self.head(features).squeeze(1) + (features * self.embedding(labels)).sum(1)


@dataclass(frozen=True, kw_only=True)
class ConditionalGAN(DataGenerator):
    """A generator G and a discriminator D, trained against one another; both receive the class.

    With s the softplus, z noise, and y labels with the class frequencies of the client::

        min_D  s(-D(x, y)) + s(D(G(z, y), y)),        min_G  s(-D(G(z, y), y))

    Goodfellow et al. 2014 (https://arxiv.org/abs/1406.2661) with the convolutions of DCGAN (https://arxiv.org/abs/1511.06434). It
    is among the generators that section 5 of Fedssyn (https://arxiv.org/abs/2306.13263) compares. Only D sees samples, so only
    its steps are private, and G inherits the guarantee.

    Args:
        latent: dimensions of the noise, >= 1.
        width: channels of the outermost layers, or half the hidden units for a table, >= 1.
        epochs: passes over the client's samples, >= 1.
        batch_size: samples in a step, >= 1.
        lr: learning rate of both Adams (betas 0.5 and 0.999), > 0.
        privacy: see :class:`PrivateTraining`; None trains without privacy.
    """

    latent: int = option(64, ">= 1")
    width: int = option(64, ">= 1")
    epochs: int = option(200, ">= 1")
    batch_size: int = option(128, ">= 1")
    lr: float = option(2e-4, "> 0")
    privacy: PrivateTraining | None = None

    def train(self, inputs: Tensor, labels: Tensor, num_classes: int, log: Log) -> Sampler:
        shape, device = tuple(inputs.shape[1:]), inputs.device
        maker = Maker(shape, self.latent, self.width, num_classes).to(device)
        critic = Critic(shape, self.width, num_classes).to(device)
        maker_optimizer, critic_optimizer = (
            torch.optim.Adam(network.parameters(), lr=self.lr, betas=(0.5, 0.999)) for network in (maker, critic)
        )

        def make(labels: Tensor) -> Tensor:
            return maker(torch.randn(len(labels), self.latent).to(device), labels)

        def critic_loss(critic: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                fakes = make(labels)
            return F.softplus(-critic(inputs, labels)) + F.softplus(critic(fakes, labels))

        def maker_step() -> None:
            wanted = labels[torch.randint(len(labels), (min(self.batch_size, len(labels)),)).to(device)]
            loss = F.softplus(-critic(make(wanted), wanted)).mean()
            descend(maker_optimizer, maker.parameters(), loss)

        GeneratorTraining(
            critic, critic_loss, critic_optimizer, inputs, labels, self.epochs, self.batch_size, log, self.privacy, maker_step
        ).run()
        maker.eval()
        return make
