"""DDPM: a denoising diffusion model as a generator of labelled images, with diffusers' network and noise schedule."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flcog.callbacks.fedssyn.generators.base import DataGenerator, Log, Sampler, padded
from flcog.callbacks.fedssyn.generators.private_training import GeneratorTraining, PrivateTraining
from flcog.core.checks import option, within
from flcog.core.extras import require


@dataclass(frozen=True, kw_only=True)
class DDPM(DataGenerator):
    """A U-Net that removes noise step by step until an image of the given class remains.

    With the cosine schedule alpha_bar(t), T = ``diffusion_steps``, and t drawn uniformly::

        min  || e - e_theta(sqrt(alpha_bar_t) x + sqrt(1 - alpha_bar_t) e, t, y) ||^2 / D,     e ~ N(0, I),  x in [-1, 1]

    The ancestral sampler of Ho et al. draws images with variance beta~_t in ``sampling_steps`` of the T steps, with the
    predicted x_0 cut to [-1, 1], from a moving average of the weights. The decay of that average warms up (diffusers'
    ``EMAModel``): after the 1,000 steps of a client with few images, a constant decay of 0.9995 would leave 61 % of the random
    start.

    Ho et al. 2020 (https://arxiv.org/abs/2006.11239), cosine schedule of Nichol and Dhariwal 2021
    (https://arxiv.org/abs/2102.09672). The defaults are the setting of Fedssyn (section 4 of https://arxiv.org/abs/2306.13263,
    which trained with https://github.com/VSehwag/minimal-diffusion): attention in the middle and down to a quarter of the side.
    Built from diffusers' blocks, the network has 14.2 million parameters for ten classes of 32x32 colour images; the authors' has
    14.4. Needs ``pip install 'flcog[generate]'``. Images are padded with black if the network cannot halve their sides often
    enough.

    Args:
        width: channels at full resolution, >= 1.
        multipliers: the channels at each resolution, as multiples of ``width``; each resolution is half of the one before.
        blocks: residual blocks at each resolution, >= 1.
        attention: how many resolutions, starting with the largest, have self-attention.
        head_dim: channels of an attention head, >= 1.
        dropout: probability of dropout, in [0, 1).
        diffusion_steps: T, >= 1.
        sampling_steps: steps that the sampler takes, 1 to T.
        epochs: passes over the client's samples, >= 1.
        batch_size: samples in a step, >= 1.
        lr: learning rate of AdamW, > 0.
        ema: the moving average's decay, in [0, 1); 0 samples from the last weights.
        flip: whether to mirror images at random, as Fedssyn does for CIFAR. Not for digits or letters.
        privacy: see :class:`PrivateTraining`; None trains without privacy.

    Example:
        >>> small = DDPM(width=32, multipliers=(1, 2, 2), blocks=1, attention=0, sampling_steps=50)
        >>> small.diffusion_steps
        1000
    """

    width: int = option(64, ">= 1")
    multipliers: tuple[int, ...] = option((1, 2, 2, 2), ">= 1")
    blocks: int = option(3, ">= 1")
    attention: int = 3
    head_dim: int = option(64, ">= 1")
    dropout: float = option(0.1, "[0, 1)")
    diffusion_steps: int = option(1000, ">= 1")
    sampling_steps: int = option(250, ">= 1")
    epochs: int = option(500, ">= 1")
    batch_size: int = option(256, ">= 1")
    lr: float = option(1e-4, "> 0")
    ema: float = option(0.9995, "[0, 1)")
    flip: bool = False
    privacy: PrivateTraining | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "multipliers", tuple(self.multipliers))
        within(self, f"[0, {len(self.multipliers)}]", "attention")
        within(self, f"[1, {self.diffusion_steps}]", "sampling_steps")

    def train(self, inputs: Tensor, labels: Tensor, num_classes: int, log: Log) -> Sampler:
        if inputs.ndim != 4:
            raise ValueError("DDPM generates images, and this data set has rows of a table: use BetaVAE or ConditionalGAN")
        shape, device = inputs.shape[1:], inputs.device
        data = padded(2 * inputs - 1, 2 ** (len(self.multipliers) - 1))
        if data.shape[2:] != shape[1:]:
            data[:, :, shape[1] :] = -1
            data[:, :, :, shape[2] :] = -1
        network, scheduler = self.network(shape[0], max(data.shape[2:]), num_classes).to(device), self.scheduler()
        average = require("diffusers", "DDPM", "generate").training_utils.EMAModel(
            network.parameters(), decay=self.ema, foreach=True
        )
        optimizer = torch.optim.AdamW(network.parameters(), lr=self.lr)
        loss = partial(self._loss, scheduler.alphas_cumprod.to(device))

        def move_average() -> None:
            average.step(network.parameters())

        GeneratorTraining(
            network, loss, optimizer, data, labels, self.epochs, self.batch_size, log, self.privacy, move_average
        ).run()
        average.copy_to(network.parameters())
        network.eval()

        def sample(labels: Tensor) -> Tensor:
            images = torch.randn(len(labels), *data.shape[1:]).to(device)
            for step in scheduler.timesteps:
                predicted = network(images, step.to(device), class_labels=labels).sample
                # On the CPU for every device, so that a seed gives the same start and noise everywhere.
                rng = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
                images = scheduler.step(predicted, int(step), images, generator=rng).prev_sample
            return ((images + 1) / 2)[:, :, : shape[1], : shape[2]]

        return sample

    def _loss(self, alpha_bar: Tensor, module: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """The squared error of the predicted noise, for each image, at a random step of the diffusion."""
        device = images.device
        if self.flip:
            images = torch.where(torch.rand(len(images), 1, 1, 1).to(device) < 0.5, images.flip(3), images)
        steps = torch.randint(self.diffusion_steps, (len(images),)).to(device)
        noise = torch.randn(images.shape).to(device)
        signal = alpha_bar[steps].view(-1, 1, 1, 1)
        predicted = module(signal.sqrt() * images + (1 - signal).sqrt() * noise, steps, class_labels=labels).sample
        return (predicted - noise).square().flatten(1).mean(1)

    def network(self, channels: int, side: int, num_classes: int) -> nn.Module:
        """The noise predictor: ``network(images, steps, class_labels=labels).sample``."""
        levels = len(self.multipliers)
        attends = [level < self.attention for level in range(levels)]
        widths = tuple(self.width * factor for factor in self.multipliers)
        groups = next(count for count in (32, 16, 8, 4, 2, 1) if all(width % count == 0 for width in widths))
        return require("diffusers", "DDPM", "generate").UNet2DModel(
            sample_size=side,
            in_channels=channels,
            out_channels=channels,
            layers_per_block=self.blocks,
            block_out_channels=widths,
            down_block_types=tuple("AttnDownBlock2D" if attend else "DownBlock2D" for attend in attends),
            up_block_types=tuple("AttnUpBlock2D" if attend else "UpBlock2D" for attend in reversed(attends)),
            dropout=self.dropout,
            attention_head_dim=min(self.head_dim, *widths),
            add_attention=self.attention > 0,
            norm_num_groups=groups,
            attn_norm_num_groups=groups,
            resnet_time_scale_shift="scale_shift",
            downsample_type="resnet",
            upsample_type="resnet",
            num_class_embeds=num_classes,
        )

    def scheduler(self) -> Any:
        """Diffusers' DDPM with the cosine schedule, re-spaced for sampling."""
        scheduler = require("diffusers", "DDPM", "generate").DDPMScheduler(
            num_train_timesteps=self.diffusion_steps,
            beta_schedule="squaredcos_cap_v2",
            prediction_type="epsilon",
            variance_type="fixed_small",
            clip_sample=True,
            timestep_spacing="trailing",
        )
        scheduler.set_timesteps(self.sampling_steps)
        return scheduler
