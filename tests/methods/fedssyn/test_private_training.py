"""Private training of generators: clipped gradients, the size of the noise, and the accountant's epsilon."""

import copy
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from harness import ROOT, TinyData, fit
from torch import Tensor, nn

from flcog.callbacks import BetaVAE, Fedssyn, PrivateTraining
from flcog.callbacks.fedssyn.generators.beta_vae import Autoencoder, Posterior, class_means
from flcog.callbacks.fedssyn.generators.conditional_gan import Critic
from flcog.callbacks.fedssyn.generators.ddpm import DDPM
from flcog.callbacks.fedssyn.generators.private_training import Budget, GeneratorTraining

pytestmark = pytest.mark.filterwarnings("error")


def critic_loss(network: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    """A loss with two passes through the network, like the loss of the GAN's discriminator."""
    return F.softplus(-network(inputs)[:, 0]) + F.softplus(network(inputs + 1)[:, 0])


@pytest.mark.parametrize("physical", [3, 64])
def test_a_private_step_is_the_sum_of_clipped_gradients(physical: int) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    plain, inputs = copy.deepcopy(network), 3 * torch.randn(8, 3)
    gradients = []
    for row in inputs:
        slopes = torch.autograd.grad(critic_loss(plain, row[None], row).sum(), list(plain.parameters()))
        norm = torch.cat([slope.flatten() for slope in slopes]).norm()
        gradients.append([slope * min(1.0, 0.5 / float(norm)) for slope in slopes])
    assert len({float(g[0].norm()) for g in gradients}) == 8
    privacy = PrivateTraining(noise_multiplier=1e-9, max_grad_norm=0.5, physical_batch_size=physical)
    optimizer = torch.optim.SGD(network.parameters(), lr=2.0)
    # A batch of all samples: every sample takes part with probability 1.
    GeneratorTraining(network, critic_loss, optimizer, inputs, torch.zeros(8), 1, 8, lambda *_: None, privacy).run()
    for parameter, start, *slopes in zip(network.parameters(), plain.parameters(), *gradients, strict=True):
        torch.testing.assert_close(parameter, start - 2.0 * sum(slopes) / 8, rtol=1e-4, atol=1e-6)


def vae_loss(network: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    error, divergence = network(inputs, labels)
    return error + 2 * divergence


def gan_loss(network: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.softplus(-network(inputs, labels)) + F.softplus(network(inputs.flip(3), labels))


def unet_loss(network: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    return (network(inputs, 3 + labels, class_labels=labels).sample - inputs.flip(3)).square().flatten(1).mean(1)


class Fixed(Posterior):
    def draw(self) -> Tensor:
        return self.mean + (0.5 * self.log_variance).exp()


class Repeatable(Autoencoder):
    """Draws no random numbers."""

    def encode(self, *inputs: Tensor) -> Posterior:
        return Fixed(*super().encode(*inputs))


UNET = DDPM(width=4, multipliers=(1, 2), blocks=1, attention=1, head_dim=4, dropout=0.0)


@pytest.mark.parametrize(
    ("network", "loss"),
    [
        (lambda: Repeatable((1, 8, 8), 2, 4, 8, 3), vae_loss),  # transposed convolutions
        (lambda: Critic((1, 8, 8), 4, 3), gan_loss),  # two passes through every layer, including an embedding
        (lambda: UNET.network(1, 8, 3), unet_loss),
    ],
    ids=["vae", "gan", "ddpm"],
)
def test_image_layers_have_gradients_of_each_sample(network: Any, loss: Any) -> None:
    torch.manual_seed(0)
    trained_network, inputs, labels = network(), torch.rand(5, 1, 8, 8), torch.arange(5) % 3
    plain = copy.deepcopy(trained_network)
    gradients = [
        torch.autograd.grad(loss(plain, inputs[[i]], labels[[i]]).sum(), list(plain.parameters()), materialize_grads=True)
        for i in range(5)
    ]
    norms = torch.stack([torch.cat([slope.flatten() for slope in slopes]).norm() for slopes in gradients])
    longest = float(norms.median())  # the longer gradients are clipped
    privacy = PrivateTraining(noise_multiplier=1e-9, max_grad_norm=longest, physical_batch_size=3)
    optimizer = torch.optim.SGD(trained_network.parameters(), lr=1 / longest)
    GeneratorTraining(trained_network, loss, optimizer, inputs, labels, 1, 5, lambda *_: None, privacy).run()
    for (name, parameter), start, *slopes in zip(trained_network.named_parameters(), plain.parameters(), *gradients, strict=True):
        step = sum(slope / max(float(norm), longest) for slope, norm in zip(slopes, norms, strict=True)) / 5
        torch.testing.assert_close(start - parameter, step, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.slow
def test_secret_noise_does_not_follow_from_the_seed(tmp_path: Path) -> None:
    def trained_weight(privacy: PrivateTraining) -> tuple[Tensor, Tensor]:
        """The weight after a private step without gradient, which is only noise, and a release of zeros."""
        torch.manual_seed(3)
        network = nn.Linear(40, 1, bias=False)
        nn.init.zeros_(network.weight)
        inputs = torch.zeros(10, 40)
        optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
        GeneratorTraining(network, lambda f, x, y: f(x)[:, 0], optimizer, inputs, inputs, 1, 10, lambda *_: None, privacy).run()
        return network.weight.detach(), Budget(privacy, extra_releases=1).release(torch.zeros(2, 40))

    public, secret = PrivateTraining(noise_multiplier=3.0), PrivateTraining(noise_multiplier=3.0, secret=True)
    noise, released = trained_weight(public)
    torch.manual_seed(3)
    nn.Linear(40, 1, bias=False)
    torch.rand(10)  # the draw that decides which samples take part
    torch.testing.assert_close(noise, -torch.normal(0.0, 3.0, (1, 40)) / 10)
    torch.testing.assert_close(released, 3.0 * torch.randn(40))
    (first, first_released), (second, second_released) = trained_weight(secret), trained_weight(secret)
    for values in ((noise, first, second), (released, first_released, second_released)):
        assert not any(torch.isclose(a, b).all() for a, b in itertools.combinations(values, 2))
        assert all(0.5 < value.std() / values[0].std() < 2 for value in values)

    def run(folder: str, rounds: int = 1) -> Tensor:
        generator = BetaVAE(latent=2, hidden=8, epochs=1, batch_size=4, privacy=secret)
        trainer = fit(
            tmp_path / folder, Fedssyn(generator=generator, num_images=3), rounds=rounds, data=TinyData(order=(3, 5)),
            clients_per_round=2, ckpt_path="last" if rounds > 1 else None,
        )  # fmt: skip
        return trainer.run.federation.train.inputs[-6:]  # type: ignore[return-value]

    one, other = run("one"), run("other")
    assert not torch.isclose(one, other).all(1).any()
    assert torch.equal(run("one", rounds=2), one)  # made once, and kept


def test_the_private_setting_fits_its_budget() -> None:
    """The paper's clients train on 75 % of 5,000 images. Their epsilon is computed for every number of epochs in the table."""
    config = yaml.safe_load((ROOT / "configs/methods/fedssyn-private.yaml").read_text())
    given = config["trainer"]["callbacks+"][0]["init_args"]
    options, size = given["generator"]["init_args"], round(given["rho"] * 5000)
    privacy = PrivateTraining(**options["privacy"])
    budget, rate = Budget(privacy), options["batch_size"] / size
    spent = [budget.epsilon(epochs * round(1 / rate), rate) for epochs in (50, 250, options["epochs"])]
    assert privacy.max_epsilon is not None and 0.95 * privacy.max_epsilon < spent[-1] <= privacy.max_epsilon
    assert spent == pytest.approx([2.6, 6.5, 9.8], abs=0.05)  # as the table says


def test_the_noise_has_the_size_that_is_accounted_for() -> None:
    network = nn.Linear(4000, 1, bias=False)
    start, inputs = network.weight.detach().clone(), torch.zeros(10, 4000)
    privacy = PrivateTraining(noise_multiplier=3.0, max_grad_norm=0.5)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    GeneratorTraining(
        network, lambda f, x, y: f(x)[:, 0], optimizer, inputs, torch.zeros(10), 1, 10, lambda *_: None, privacy
    ).run()
    assert float((network.weight.detach() - start).std()) == pytest.approx(3.0 * 0.5 / 10, rel=0.05)


@pytest.mark.slow
def test_epsilon_is_the_accountants() -> None:
    from opacus.accountants import RDPAccountant

    seen: list[dict[str, float]] = []
    privacy, accountant = PrivateTraining(noise_multiplier=1.3, delta=1e-3), RDPAccountant()
    network, inputs = nn.Linear(2, 1), torch.randn(30, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def loss(f: Any, x: Tensor, y: Tensor) -> Tensor:
        return f(x)[:, 0].square()

    budget = GeneratorTraining(network, loss, optimizer, inputs, inputs, 3, 10, lambda _, f: seen.append(f), privacy).run()
    assert seen[0]["epsilon"] < seen[1]["epsilon"] < seen[2]["epsilon"]
    for _ in range(3 * 3):
        accountant.step(noise_multiplier=1.3, sample_rate=10 / 30)
    assert seen[2]["epsilon"] == pytest.approx(accountant.get_epsilon(delta=1e-3), rel=1e-9)
    assert isinstance(budget, Budget)
    few: list[dict[str, float]] = []
    limit = (seen[1]["epsilon"] + seen[2]["epsilon"]) / 2
    limited = dataclasses.replace(privacy, max_epsilon=limit)
    GeneratorTraining(network, loss, optimizer, inputs, inputs, 3, 10, lambda _, f: few.append(f), limited).run()
    assert [f["epsilon"] for f in few] == [f["epsilon"] for f in seen[:2]]
    with pytest.raises(ValueError, match=r"one epoch would spend epsilon .* of max_epsilon=0.01 on a client: raise noise_mult"):
        GeneratorTraining(
            network, loss, optimizer, inputs, inputs, 3, 10, lambda *_: None, dataclasses.replace(privacy, max_epsilon=0.01)
        ).run()


def test_private_means_of_latents_are_noisy_and_paid_for() -> None:
    from opacus.accountants import RDPAccountant

    torch.manual_seed(0)
    privacy, accountant = PrivateTraining(noise_multiplier=2.0, delta=1e-5), RDPAccountant()
    budget = Budget(privacy, extra_releases=1)
    accountant.step(noise_multiplier=2.0, sample_rate=1.0)
    expected = accountant.get_epsilon(delta=1e-5)
    assert budget.epsilon() == pytest.approx(expected)  # the release that is still to come counts
    labels = torch.arange(40000) % 2
    latents = torch.tensor([[0.5, 0.0], [0.0, 30.0]])[labels]
    means = class_means(latents, labels, 2, budget)
    assert budget.epsilon() == pytest.approx(expected) and budget.extra_releases == 0
    # Latents are clipped to a norm of sqrt(2), so that no sample contributes more than the noise is made for.
    torch.testing.assert_close(means, torch.tensor([[0.5, 0.0], [0.0, 2**0.5]]), atol=2e-3, rtol=0)
    assert not torch.equal(means, torch.tensor([[0.5, 0.0], [0.0, 2**0.5]]))
    rows: list[Tensor] = []
    budget.release = lambda contributions: rows.append(contributions) or contributions.sum(0)  # type: ignore[method-assign,func-returns-value]
    class_means(latents[:8], labels[:8], 2, budget)
    assert rows[0].flatten(1).norm(dim=1).max() <= 1 + 1e-6
