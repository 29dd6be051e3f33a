"""Training of a client's generator, with differential privacy (DP-SGD, by Opacus) on request."""

import os
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from flcog.callbacks.fedssyn.generators.base import Log
from flcog.core.checks import check_options, option
from flcog.core.extras import require

Loss = Callable[[Any, Tensor, Tensor], Tensor]
"""``loss(network, inputs, labels) -> the loss of each sample [B]``."""


@dataclass(frozen=True, kw_only=True)
class PrivateTraining:
    """Trains a generator with a differential privacy guarantee (DP-SGD), by Opacus.

    In every step each sample takes part with probability q = batch_size / n, and the optimiser receives::

        1/(q n) [ sum_j g_j min(1, max_grad_norm / ||g_j||) + N(0, noise_multiplier^2 max_grad_norm^2 I) ]

    Everything that the generator makes is then (epsilon, delta)-private in the client's samples: adding or removing one sample
    changes the distribution of the client's message by a factor of at most e^epsilon, except with probability delta. Opacus'
    Renyi accountant computes epsilon after every epoch. The guarantee does not cover:

    - the number of samples of each class, because the synthetic labels follow it;
    - the run's seed, in config.yaml and at the trackers, unless ``secret``: the noise follows from it, so that everyone who knows
      it can remove the noise;
    - the quality of torch's random numbers, which are not cryptographic;
    - the loss of each epoch in synthetic.csv, which has no noise: do not publish it;
    - the choice of images that people delete by hand, if they look at the samples to decide.

    Abadi et al. 2016 (https://arxiv.org/abs/1607.00133); Fedssyn's values, after Dockhorn et al. 2022
    (https://arxiv.org/abs/2210.09929), in section 6 of https://arxiv.org/abs/2306.13263; Opacus,
    https://arxiv.org/abs/2109.12298.

    Args:
        noise_multiplier: the noise's scale in units of ``max_grad_norm``, > 0.
        max_grad_norm: largest gradient norm of one sample, > 0.
        delta: in (0, 1), well below 1 / n.
        max_epsilon: training ends before the epoch that would exceed it, > 0; None for no limit.
        secret: whether noise and sampling come from the system's entropy (``os.urandom``) instead of the seed. The sets then
            cannot be generated again: Fedssyn's ``directory`` has the only copy.
        physical_batch_size: number of samples with gradients in memory at once, >= 1; changes results only by rounding.

    Example:
        >>> PrivateTraining(max_epsilon=10.0).noise_multiplier
        1.906
    """

    noise_multiplier: float = option(1.906, "> 0")
    max_grad_norm: float = option(1.0, "> 0")
    delta: float = option(1e-5, "(0, 1)")
    max_epsilon: float | None = option(None, "> 0")
    secret: bool = False
    physical_batch_size: int = option(64, ">= 1")

    def __post_init__(self) -> None:
        check_options(self)

    def report(self, epsilon: float) -> str:
        """Epsilon for a report: with delta, the accountant, and a warning if the noise protects nothing.

        >>> PrivateTraining(secret=True).report(9.8765)
        "epsilon 9.877 at most, delta 1e-05, by Opacus' Renyi accountant; noise from the system's entropy"
        """
        noise = (
            "noise from the system's entropy"
            if self.secret
            else "anyone who knows the run's seed can remove its noise: it protects nothing (generator.privacy.secret)"
        )
        return f"epsilon {epsilon:.4g} at most, delta {self.delta:g}, by Opacus' Renyi accountant; {noise}"

    def stream(self, device: torch.device | str = "cpu") -> torch.Generator | None:
        """The random generator for one draw of noise or samples; None for torch's global stream, which follows the seed.

        Each draw gets a new one: torch uses only 32 bits of a seed on the CPU, and an attacker could try them all for a whole
        training.
        """
        if not self.secret:
            return None
        return torch.Generator(device).manual_seed(int.from_bytes(os.urandom(8), "little"))


class Budget:
    """Counts the privacy that a client's training has spent."""

    def __init__(self, privacy: PrivateTraining, extra_releases: int = 0) -> None:
        self.privacy, self.extra_releases = privacy, extra_releases
        self.steps = Counter[float]()
        """Number of steps for each probability that a sample takes part."""

    def spend(self, sample_rate: float) -> None:
        """Count a step with this probability that a sample takes part."""
        self.steps[sample_rate] += 1

    def epsilon(self, more_steps: int = 0, sample_rate: float = 1.0) -> float:
        """Epsilon after ``more_steps`` further steps and the releases still to come, as by Opacus' ``RDPAccountant``."""
        steps = self.steps + Counter({sample_rate: more_steps}) + Counter({1.0: self.extra_releases})
        if not steps:
            return 0.0
        accountants = require("opacus", "private training", "generate").accountants
        with warnings.catch_warnings():
            # Opacus warns if the best Renyi order is the largest it tries: epsilon is then valid, but perhaps not the smallest.
            warnings.simplefilter("ignore")
            total = sum(count * divergence(rate, self.privacy.noise_multiplier) for rate, count in steps.items())
            orders = accountants.RDPAccountant.DEFAULT_ALPHAS
            return float(accountants.analysis.rdp.get_privacy_spent(orders=orders, rdp=total, delta=self.privacy.delta)[0])

    def allows(self, more_steps: int, sample_rate: float, first: bool) -> bool:
        """Whether another epoch of ``more_steps`` stays within ``max_epsilon``; an error if even the first does not."""
        limit = self.privacy.max_epsilon
        if limit is None or (epsilon := self.epsilon(more_steps, sample_rate)) <= limit:
            return True
        if first:
            raise ValueError(
                f"one epoch would spend epsilon {epsilon:.3g} of max_epsilon={limit:g} on a client: raise noise_multiplier, "
                "lower batch_size, or raise max_epsilon"
            )
        return False

    def release(self, contributions: Tensor) -> Tensor:
        """The noisy sum of rows [n, ...] with norms of at most 1; counts as a step with all samples."""
        self.extra_releases -= 1
        self.spend(1.0)
        noise = torch.randn(contributions.shape[1:], generator=self.privacy.stream()).to(contributions.device)
        return contributions.sum(0) + self.privacy.noise_multiplier * noise


@lru_cache(maxsize=64)
def divergence(rate: float, noise_multiplier: float) -> Any:
    """The Renyi divergences of one step, which takes Opacus up to a third of a second. They add up over steps."""
    accountants = require("opacus", "private training", "generate").accountants
    orders = accountants.RDPAccountant.DEFAULT_ALPHAS
    return accountants.analysis.rdp.compute_rdp(q=rate, noise_multiplier=noise_multiplier, steps=1, orders=orders)


@dataclass
class GeneratorTraining:
    """One client's training of one network: epochs that minimise the mean loss.

    Example:
        >>> line, points = nn.Linear(1, 1), torch.linspace(-1, 1, 8)[:, None]
        >>> optimizer, seen = torch.optim.SGD(line.parameters(), lr=0.5), []
        >>> def loss(f, x, y):
        ...     return (f(x) - 2 * x).square().sum(1)
        >>> GeneratorTraining(line, loss, optimizer, points, points, 60, 8, lambda *figures: seen.append(figures)).run()
        >>> round(line.weight.item(), 3), len(seen)
        (2.0, 60)
    """

    network: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer
    inputs: Tensor
    labels: Tensor
    epochs: int
    batch_size: int
    log: Log
    privacy: PrivateTraining | None = None
    after_step: Callable[[], None] | None = None
    extra_releases: int = 0

    def run(self) -> Budget | None:
        """Train; returns the privacy that was spent if training is private."""
        if self.privacy is not None:
            return self._run_privately(self.privacy)
        for epoch in range(self.epochs):
            self.log(epoch + 1, {"loss": self._epoch()})
        return None

    def _epoch(self) -> float:
        total = torch.zeros((), device=self.inputs.device)  # read once an epoch, so that an accelerator need not wait each step
        for rows in torch.randperm(len(self.inputs)).split(self.batch_size):
            self.optimizer.zero_grad(set_to_none=True)
            values = self._backward(self.network, rows.to(self.inputs.device))
            self.optimizer.step()
            total += values.sum()
            if self.after_step:
                self.after_step()
        return float(total) / len(self.inputs)

    def _backward(self, network: Any, rows: Tensor) -> Tensor:
        """Gradients of the mean loss of some samples; returns each one's loss."""
        values = self.loss(network, self.inputs[rows], self.labels[rows])
        values.mean().backward()
        return values.detach()

    def _run_privately(self, privacy: PrivateTraining) -> Budget:
        budget = Budget(privacy, self.extra_releases)
        rate = min(1.0, self.batch_size / len(self.inputs))
        steps = max(1, round(1 / rate))
        with warnings.catch_warnings():
            # Opacus' hooks cause torch's warning about inputs without gradients in every pass, as a first layer needs none.
            warnings.simplefilter("ignore")
            opacus = require("opacus", "private training", "generate")
            wrapped = opacus.GradSampleModule(self.network)
            handles = _inputs_in_order(self.network)
            private = opacus.optimizers.DPOptimizer(
                self.optimizer,
                noise_multiplier=privacy.noise_multiplier,
                max_grad_norm=privacy.max_grad_norm,
                expected_batch_size=rate * len(self.inputs),
            )
            private.attach_step_hook(lambda _: budget.spend(rate))
            for epoch in range(self.epochs):
                if not budget.allows(steps, rate, first=epoch == 0):
                    break
                total, seen = torch.zeros((), device=self.inputs.device), 0
                for _ in range(steps):
                    for values in self._private_step(wrapped, private, privacy, rate):
                        total, seen = total + values.sum(), seen + len(values)
                    if self.after_step:
                        wrapped.disable_hooks()  # Opacus keeps no record of passes that read no samples of the client
                        self.after_step()
                        wrapped.enable_hooks()
                self.log(epoch + 1, {"loss": float(total) / max(1, seen), "epsilon": budget.epsilon()})
            private.zero_grad(set_to_none=True)
            wrapped.to_standard_module()
            for handle in handles:
                handle.remove()
        return budget

    def _private_step(self, wrapped: Any, private: Any, privacy: PrivateTraining, rate: float) -> list[Tensor]:
        """One step on samples that each take part with probability ``rate``, as the accountant assumes; returns their losses."""
        drawn = torch.nonzero(torch.rand(len(self.inputs), generator=privacy.stream()) < rate).squeeze(1).to(self.inputs.device)
        parts, losses = drawn.split(privacy.physical_batch_size), []
        private.generator = privacy.stream(self.inputs.device)
        for i, rows in enumerate(parts):
            private.zero_grad(set_to_none=True)
            if len(rows):
                losses.append(self._backward(wrapped, rows))
            else:
                for value in self.network.parameters():
                    value.grad_sample = value.new_zeros((0, *value.shape))  # type: ignore[attr-defined]
            # Clipped gradients add up until the last part, whose step adds the noise.
            private.signal_skip_step(i < len(parts) - 1)
            private.step()
        return losses


def _inputs_in_order(network: nn.Module) -> list[Any]:
    """Hooks that make convolutions' inputs contiguous as N, C, H, W, to be removed after training.

    Opacus 1.6 assumes this layout. After attention inputs have another one, and Opacus would clip and add wrong gradients.
    """
    return [
        layer.register_forward_pre_hook(lambda _, given: tuple(value.contiguous() for value in given))
        for layer in network.modules()
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)
    ]
