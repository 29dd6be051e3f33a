"""Fedssyn's generators (an autoencoder, a GAN and a diffusion model) agree with their papers."""

import math
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from harness import train
from torch import Tensor, nn

from flcog.callbacks import BetaVAE, ConditionalGAN, Fedssyn, PrivateTraining
from flcog.callbacks.fedssyn.generators import beta_vae
from flcog.callbacks.fedssyn.generators.base import Form
from flcog.callbacks.fedssyn.generators.beta_vae import Autoencoder, Posterior
from flcog.callbacks.fedssyn.generators.ddpm import DDPM
from flcog.data import Samples

pytestmark = pytest.mark.filterwarnings("error")


def test_values_survive_the_way_to_a_generator_and_back() -> None:
    for stored in (
        torch.randint(256, (5, 4, 6, 3), dtype=torch.uint8),
        torch.randint(2, (5, 4, 6, 1), dtype=torch.uint8),  # dSprites
        torch.rand(5, 4, 6, 1),
        torch.randn(5, 7),
    ):
        form = Form.of(Samples(stored, torch.zeros(5)))
        values = form.encode(stored)
        assert values.dtype == torch.float32
        if stored.ndim == 4:
            assert values.shape == (5, stored.shape[3], 4, 6) and values.min() >= 0 and values.max() <= 1
        decoded = form.decode(values)
        assert decoded.dtype == stored.dtype and torch.allclose(decoded.float(), stored.float(), atol=1e-6)


GENERATORS = {
    "vae": BetaVAE(latent=2, hidden=8, channels=4, epochs=1),
    "conditional vae": BetaVAE(latent=2, hidden=8, channels=4, epochs=1, conditional=True, capacity=3.0),
    "gan": ConditionalGAN(latent=4, width=4, epochs=1),
    "ddpm": DDPM(
        width=8, multipliers=(1, 2), blocks=1, attention=1, head_dim=4, diffusion_steps=6, sampling_steps=3, epochs=1, flip=True
    ),
}
SHAPES = [(1, 8, 8), (3, 11, 9), (6,)]


# One shape is enough for the diffusion model, which is the slowest and generates no rows of a table.
@pytest.mark.parametrize(
    ("name", "shape"),
    [*product(["vae", "conditional vae", "gan"], SHAPES), pytest.param("ddpm", (3, 11, 9), marks=pytest.mark.slow)],
    ids=str,
)
def test_a_generator_makes_what_it_was_given(name: str, shape: tuple[int, ...]) -> None:
    inputs, labels = torch.rand(9, *shape), torch.arange(9) % 3
    figures: list[dict[str, float]] = []
    sample = GENERATORS[name].train(inputs, labels, 4, lambda epoch, f: figures.append(f))
    with torch.no_grad():
        made = sample(torch.tensor([0, 2, 2, 3]))
    assert made.shape == (4, *shape) and made.isfinite().all() and made[1:3].unique(dim=0).shape[0] == 2
    assert len(figures) == 1 and math.isfinite(figures[0]["loss"])


@pytest.mark.slow
def test_a_diffusion_model_can_be_private() -> None:
    generator = DDPM(
        width=4, multipliers=(1, 1), blocks=1, attention=1, head_dim=4, diffusion_steps=4, sampling_steps=2, epochs=1, batch_size=2,
        privacy=PrivateTraining(noise_multiplier=5.0, physical_batch_size=1),
    )  # fmt: skip
    figures: list[dict[str, float]] = []
    sample = generator.train(torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 0, 1]), 2, lambda epoch, f: figures.append(f))
    with torch.no_grad():
        assert sample(torch.tensor([0, 1])).isfinite().all()
    assert figures[0]["epsilon"] > 0


def test_a_generator_that_diverged_is_no_source_of_data() -> None:
    with pytest.raises(ValueError, match=r"^client 0's generator has diverged: .* Lower generator.lr$"):
        train(Fedssyn(generator=BetaVAE(latent=2, hidden=8, epochs=30, lr=1e20)))


@pytest.mark.slow
def test_generators_learn_the_classes() -> None:
    """The classes of a table are at -2 and 2, and so are the generated samples."""
    torch.manual_seed(0)
    labels = torch.arange(60) % 2
    inputs = (4.0 * labels - 2)[:, None] + 0.1 * torch.randn(60, 3)
    for generator in (
        BetaVAE(latent=2, hidden=16, epochs=40, batch_size=30, lr=0.02, beta=0.2, std=0.2),
        ConditionalGAN(latent=4, width=16, epochs=60, batch_size=30, lr=0.01),
    ):
        sample = generator.train(inputs, labels, 2, lambda epoch, figures: None)
        with torch.no_grad():
            made = sample(torch.tensor([0] * 50 + [1] * 50))
        assert made[:50].mean() < -1 and made[50:].mean() > 1, generator


def test_the_divergence_is_torchs_own() -> None:
    posterior = Posterior(torch.randn(5, 3), torch.randn(5, 3))
    normal = torch.distributions.Normal(posterior.mean, (0.5 * posterior.log_variance).exp())
    expected = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(posterior.divergence, expected)
    draws = Posterior(torch.full((20000, 1), 3.0), torch.full((20000, 1), math.log(4.0))).draw()
    assert abs(draws.mean() - 3) < 0.05 and abs(draws.std() - 2) < 0.05


def test_the_autoencoder_is_that_of_burgess() -> None:
    network = Autoencoder((1, 64, 64), 10, 32, 256, 0)
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.ConvTranspose2d)]
    assert [(c.in_channels, c.out_channels, c.kernel_size[0], c.stride[0]) for c in convolutions] == (
        [(1, 32, 4, 2)] + [(32, 32, 4, 2)] * 6 + [(32, 1, 4, 2)]
    )
    linears = [(m.in_features, m.out_features) for m in network.modules() if isinstance(m, nn.Linear)]
    assert linears == [(512, 256), (256, 256), (256, 20), (10, 256), (256, 256), (256, 512)]
    # Its loss is the evidence bound, with the reconstruction error summed over pixels.
    images, labels = torch.rand(2, 1, 64, 64), torch.zeros(2, dtype=torch.long)
    torch.manual_seed(3)
    error, divergence = network(images, labels)
    torch.manual_seed(3)
    posterior = network.encode(images, labels)
    outputs = network.decode(posterior.draw(), labels).sigmoid()
    expected = -(images * outputs.log() + (1 - images) * (1 - outputs).log()).sum((1, 2, 3))
    torch.testing.assert_close(error, expected)
    torch.testing.assert_close(divergence, posterior.divergence)


def test_the_capacity_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[Any] = []

    def training(network: Any, loss: Any, *rest: Any, **options: Any) -> SimpleNamespace:
        losses.append((loss, rest))
        return SimpleNamespace(run=lambda: None)

    monkeypatch.setattr(beta_vae, "GeneratorTraining", training)
    generator = BetaVAE(latent=1, hidden=4, beta=7.0, capacity=10.0, epochs=5)
    generator.train(torch.randn(4, 2), torch.zeros(4, dtype=torch.long), 1, lambda epoch, figures: None)
    loss, rest = losses[0]
    network = lambda inputs, labels: (torch.tensor([1.0]), torch.tensor([4.0]))  # noqa: E731
    assert loss(network, None, None).item() == 1 + 7 * 4
    rest[5](2, {})  # two of five epochs are done: C = 4
    assert loss(network, None, None).item() == 1
    rest[5](5, {})
    assert loss(network, None, None).item() == 1 + 7 * 6


@pytest.mark.slow
def test_the_schedule_is_the_cosine() -> None:
    generator = DDPM(diffusion_steps=1000)
    alpha_bar = generator.scheduler().alphas_cumprod.double()
    f = lambda t: np.cos((t / 1000 + 0.008) / 1.008 * np.pi / 2) ** 2  # noqa: E731
    betas = np.minimum(1 - f(np.arange(1, 1001)) / f(np.arange(1000)), 0.999)
    np.testing.assert_allclose(alpha_bar.numpy(), np.cumprod(1 - betas), rtol=2e-4, atol=1e-8)
    steps = generator.scheduler().timesteps.tolist()
    assert len(steps) == 250 and steps[0] == 999 and set(np.diff(steps)) == {-4}
    parameters = sum(p.numel() for p in generator.network(3, 32, 10).parameters())
    assert abs(parameters / 14_419_651 - 1) < 0.02


class OfNetwork(DDPM):
    """A DDPM with a given network."""

    def __init__(self, made: Callable[[], nn.Module], **options: Any) -> None:
        super().__init__(**options)
        object.__setattr__(self, "made", made)

    def network(self, *shape: int) -> nn.Module:
        return self.made()


def test_the_sampler_finds_what_the_network_knows() -> None:
    """If the network predicts the noise of images that are constant within each class, the sampler draws these images."""
    generator = OfNetwork(lambda: Oracle(), diffusion_steps=40, sampling_steps=10, epochs=1, lr=1e-9)
    alpha_bar = generator.scheduler().alphas_cumprod
    values = torch.tensor([-0.8, 0.5])
    losses: list[float] = []

    class Oracle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, images: Tensor, step: Tensor, class_labels: Tensor) -> Any:
            a = alpha_bar[step].view(-1, 1, 1, 1)
            noise = (images - a.sqrt() * values[class_labels].view(-1, 1, 1, 1)) / (1 - a).sqrt()
            return type("Output", (), {"sample": noise + 0 * self.weight})

    labels = torch.tensor([0, 1] * 4)
    inputs = ((values[labels] + 1) / 2).view(-1, 1, 1, 1).expand(8, 1, 8, 8)
    sample = generator.train(inputs, labels, 2, lambda epoch, figures: losses.append(figures["loss"]))
    made = sample(torch.tensor([1, 0])).detach()
    assert losses[0] < 1e-8  # the loss is 0 for exactly this noise
    torch.testing.assert_close(made, ((values[[1, 0]] + 1) / 2).view(2, 1, 1, 1).expand(2, 1, 8, 8), atol=1e-4, rtol=0)


class Scale(nn.Module):
    """A network with one weight, which records this weight and its inputs at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.weights: list[float] = []
        self.asked: list[tuple[Tensor, Tensor]] = []

    def forward(self, images: Tensor, step: Tensor, class_labels: Tensor) -> Any:
        self.weights.append(self.weight.item())
        self.asked.append((images, step))
        return type("Output", (), {"sample": self.weight * images})


def trained_scale(**options: Any) -> Scale:
    """A ``Scale`` that was trained on images that are black on the left and white on the right."""
    network = Scale()
    inputs = torch.tensor([0.0, 1.0]).repeat_interleave(4).expand(64, 1, 8, 8)
    torch.manual_seed(0)
    OfNetwork(lambda: network, epochs=4, batch_size=16, lr=0.05, **options).train(
        inputs, torch.zeros(64, dtype=torch.int64), 1, lambda *_: None
    )
    return network


def test_images_are_drawn_from_the_moving_average(monkeypatch: pytest.MonkeyPatch) -> None:
    last, averaged = trained_scale(ema=0.0), trained_scale(ema=0.7)
    assert last.weights == averaged.weights and len(last.weights) == 16
    expected = 0.0
    for step, weight in enumerate([*last.weights[1:], last.weight.item()]):
        decay = min(0.7, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight
    assert averaged.weight.item() == pytest.approx(expected, rel=1e-6) and abs(expected - last.weight.item()) > 0.02


def test_images_are_mirrored_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    for flip in (False, True):
        asked = trained_scale(flip=flip).asked
        # Early steps have little noise: the right half is the brighter one unless the image is mirrored.
        sides = torch.cat([(images[..., 4:].mean((1, 2, 3)) < 0)[step < 200] for images, step in asked])
        assert len(sides) > 20 and (0.2 < sides.double().mean() < 0.8 if flip else not sides.any())
