"""Cases of the registry: Fedssyn and the gradient noise of its study."""

from functools import partial

import torch
from contracts.cases import RAGGED, Case
from reference import fedavg, gradient_noise
from torch import Tensor, nn

from flcog.callbacks.fedssyn.fedssyn import Fedssyn
from flcog.callbacks.fedssyn.generators.beta_vae import BetaVAE
from flcog.callbacks.gradient_noise import GradientNoise
from flcog.callbacks.parts.noise import draw_key, normal
from flcog.core.randomness import generator

TINY_VAE = BetaVAE(latent=2, hidden=8, epochs=2, batch_size=8, lr=0.01)

NONE = Fedssyn(share="none")


def noise_of(round: int, client: int, step: int, model: nn.Module) -> list[Tensor]:
    """The noise that a run of seed 0 in float64 draws."""
    precision = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    key = draw_key(generator(0, round, client, "draw", "GradientNoise"))
    values = [normal(key, step, tuple(value.shape), stream) for stream, value in enumerate(model.parameters())]
    torch.set_default_dtype(precision)
    return values


# Which data the clients get is compared with the paper in test_fedssyn.py. Here: that the rounds run on exactly those.
CASES: dict[str, Case] = {
    "Fedssyn": Case(Fedssyn(generator=TINY_VAE, num_images=6), fedavg.run, neutral=NONE, random=True),
    "Fedssyn-local": Case(
        Fedssyn(generator=TINY_VAE, share="local", p=0.4), fedavg.run, neutral=NONE, options=RAGGED, random=True
    ),
    "Fedssyn-real": Case(Fedssyn(share="real", p=0.5), fedavg.run, neutral=NONE, random=True),
    "GradientNoise": Case(
        GradientNoise(sigma=2.0, dimension=7),
        partial(gradient_noise.run, noise=noise_of, sigma=2.0, dimension=7),
        neutral=GradientNoise(sigma=0.0),
        random=True,
    ),
    "GradientNoise-all": Case(
        GradientNoise(sigma=1.5),
        partial(gradient_noise.run, noise=noise_of, sigma=1.5, dimension=6 * 8 + 8 + 8 * 3 + 3),
        options=RAGGED,
        random=True,
    ),
}
