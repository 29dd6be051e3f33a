"""DPSGD: local training that protects single samples of each client, by clipped gradients of samples and Gaussian noise."""

import math
import secrets
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flcog.callbacks.parts.noise import draw_key, normal
from flcog.callbacks.privacy.accountant import Sampling, check_delta, epsilon
from flcog.callbacks.privacy.clipping import shorten
from flcog.callbacks.privacy.leaks import OF_SAMPLES, is_withheld
from flcog.client_module import ClientModule
from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.method import ClientView, Context, Gradient, GradientFunction, Run, Withholding

SECOND_GRADIENT = "it takes further gradients of a batch, which the accountant does not count"
OTHER_READS = "it reads samples outside the gradient, without noise"
NO_LOSSES = "it selects clients by the losses of their training, which they send as 0"
OWN_STEPS = "its clients take more steps than the accountant counts"


@dataclass(frozen=True)
class DPSGD(Withholding):
    """Clips the gradient of every sample and adds Gaussian noise to each local step, so that a client's upload protects its samples.

    With B the samples of a batch, C the bound and z the noise multiplier::

        g = 1/|B| [ sum_{j in B} g_j min(1, C / ||g_j||) + N(0, z^2 C^2 I) ]

    The guarantee hides the content of one sample of one client from everybody else, the server included: whether the sample has this
    content, or none and a gradient of zero. The numbers of samples are public. Batches are shuffled passes, so that a sample takes part
    in one step of a pass: epsilon is that of one Gaussian mechanism for each pass, without amplification by sampling. It counts every
    round, as if a client took part in all of them. With ``local_steps`` a batch can contain the end of one pass and the beginning of
    the next, and hence a sample twice: two such passes count as four. Columns that depend on samples without noise are withheld. A
    round that is repeated, after an interruption or without a client that was dropped, is not counted again.

    The noise comes from a key of the operating system in every round, and is expanded by a generator that is not cryptographic. It is
    a simulation of the mechanism.

    Abadi et al., Deep Learning with Differential Privacy, CCS 2016, https://arxiv.org/abs/1607.00133.

    Args:
        clip: C, > 0.
        noise_multiplier: z, >= 0; 0 adds no noise and guarantees nothing.
        delta: in (0, 1 / samples of the largest client).
        repeatable: whether the noise comes from the run's seed. This protects nothing.

    Example:
        >>> DPSGD(clip=1.5).withholds("train/loss")
        True
    """

    clip: float = option(1.0, "(0, inf)")
    noise_multiplier: float = option(1.0, "[0, inf)")
    delta: float = option(1e-5, "(0, 1)")
    repeatable: bool = False

    maps_gradient = True
    is_private = True
    excludes = {
        **dict.fromkeys(("FedSAM", "FedReg", "FedDM", "PerFedAvg", "PFedMe"), SECOND_GRADIENT),
        **dict.fromkeys(("FedDisco", "FedWalk", "Fedssyn", "FedCOG", "FedGen", "PowerOfChoice"), OTHER_READS),
        **dict.fromkeys(("AFL", "FedALA", "FedDBE", "FedFomo", "FedPAC", "FedProto", "FedRoD", "IFCA", "QFFL"), OTHER_READS),
        **dict.fromkeys(
            ("FedDecorr", "FedPHP"), "it compares the samples of a batch, and DPSGD takes the gradient of each sample alone"
        ),
        "Oort": NO_LOSSES,
        "Stragglers": OWN_STEPS,
    }

    def configure_model(self, model: ClientModule) -> ClientModule:
        for name, part in model.named_modules():
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
                raise ValueError(
                    f"{self.name}: {name} is a BatchNorm layer, which mixes the samples of a batch, so that no sample has a gradient of "
                    "its own: take a model with GroupNorm"
                )
        return model

    @property
    def public_noise(self) -> str:
        return "set repeatable to false" if self.repeatable else ""

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return {"key": draw_key(rng) if self.repeatable else torch.tensor(secrets.randbits(62))}

    def wrap_gradient(self, gradient: GradientFunction, ctx: Context) -> GradientFunction:
        def of_sample(params: Params, inputs: Any, targets: Any) -> tuple[Params, Tensor, Params]:
            batch = Batch(*torch.utils._pytree.tree_map(lambda value: value.unsqueeze(0), (inputs, targets)))
            found = gradient(params, batch)
            return shorten(found.values, self.clip)[0], found.loss, found.buffers

        def private(params: Params, batch: Batch) -> Gradient:
            values, losses, buffers = torch.func.vmap(of_sample, (None, 0, 0), randomness="different")(
                params, batch.inputs, batch.targets
            )
            counts = torch.ones_like(losses) if batch.mask is None else batch.mask.to(losses.dtype)
            std = self.noise_multiplier * self.clip

            def mean(place: int, value: Tensor) -> Tensor:
                total = torch.tensordot(counts.to(value.dtype), value, 1)
                noise = normal(ctx.draws["key"], ctx.step, tuple(total.shape), stream=place)
                return (total + (std * noise).to(total.dtype)) / counts.sum().to(total.dtype)

            return Gradient(
                {name: mean(place, value) for place, (name, value) in enumerate(values.items())},
                # What forward keeps in a buffer has no noise, so that buffers that clients send stay as they were received.
                {name: ctx.received.buffers.get(name, value[0]) for name, value in buffers.items()},
                torch.zeros_like(losses.sum()),  # the loss has no noise, and would reach the server
            )

        return private

    def _uses(self, local_steps: int | None, local_epochs: float | None) -> int:
        """The number of Gaussian mechanisms that bounds a round: the most that one sample's squared numbers in batches add up to."""
        if local_steps is None:
            return math.ceil(local_epochs or 0)
        # A sample is once in a pass, steps take part in at most as many passes, and a batch in at most two of them: 1 + 1 becomes 2^2.
        return 4 * (local_steps // 2) + local_steps % 2

    def withholds(self, column: str) -> bool:
        return is_withheld(column, OF_SAMPLES)

    def on_fit_start(self, run: Run) -> None:
        check_delta(self.delta, int(run.federation.sizes.max()))

    def on_round_metrics(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        if self.noise_multiplier:
            settings = run.settings
            uses = round * self._uses(settings.local_steps, settings.local_epochs)
            metrics["privacy/epsilon_of_samples"] = epsilon(Sampling(1, 1.0), self.noise_multiplier, uses, self.delta)
