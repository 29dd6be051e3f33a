"""VHL: clients also train on a virtual data set, the same for all, and align the features of real and virtual samples."""

import copy
import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flcog.callbacks.parts.distillation import rows_of_step
from flcog.callbacks.parts.parameters import head_weight
from flcog.callbacks.parts.server_generators import example_of
from flcog.client_module import ClientModule
from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply, masked_mean
from flcog.method import ClientView, Context, Method


@functools.lru_cache(maxsize=8)
def virtual_set(
    seed: int, num_classes: int, per_class: int, std: float, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Inputs [N, *shape] and labels [N] of the virtual set: each class is noise around a mean of its own, which is also noise.

    Images start as 8x8 pixels and are enlarged, clipped to [0, 1] and normalised by 0.5 and 0.25, as in the authors' code.

    >>> inputs, labels = virtual_set(0, 2, 3, 0.5, (1, 28, 28), torch.float32, torch.device("cpu"))
    >>> inputs.shape, labels.tolist()
    (torch.Size([6, 1, 28, 28]), [0, 0, 0, 1, 1, 1])
    """
    rng, latent = np.random.default_rng(seed), (shape[0], 8, 8) if len(shape) == 3 else shape
    samples = rng.normal(size=(num_classes, 1, *latent)) + std * rng.normal(size=(num_classes, per_class, *latent))
    inputs = torch.from_numpy(samples).flatten(0, 1)
    if len(shape) == 3:
        inputs = (F.interpolate(inputs, shape[1:], mode="bilinear").clamp(0, 1) - 0.5) / 0.25
    return inputs.to(device, dtype), torch.arange(num_classes, device=device).repeat_interleave(per_class)


def supervised_contrast(features: Tensor, labels: Tensor, temperature: float, mask: Tensor | None = None) -> Tensor:
    """A loss that aligns rows of the same label and separates rows of different ones; a row without a partner counts as 0.

    Khosla et al., Supervised Contrastive Learning, NeurIPS 2020, https://arxiv.org/abs/2004.11362.
    """
    directions = F.normalize(features, dim=1)
    others = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    if mask is not None:
        others = others & (mask > 0)
    similarity = (directions @ directions.T / temperature).masked_fill(~others, -torch.inf)
    alike = others & (labels[:, None] == labels)
    log_shares = torch.where(alike, similarity - similarity.logsumexp(1, keepdim=True), 0.0)
    return masked_mean(-log_shares.sum(1) / alike.sum(1).clamp(min=1), mask)


@dataclass(frozen=True)
class VHL(Method):
    """Adds to every local step a batch of a virtual data set that all clients share, and aligns real features with it.

    The model gets C more outputs, for the C virtual classes. On a real batch (x, y), a virtual batch (v, u) and their
    features f(.), with sg for a stopped gradient, the local loss becomes::

        CE(x, y) + virtual CE(v, C + u) + align SupCon([f(x), sg f(v)], [y, u]) + virtual_align SupCon(f(v), u)

    Both CE run over all 2C outputs; evaluation, other methods and ``train/loss`` see the first C. Every client computes the set
    from ``seed``, so it is never sent. It is the authors' Gaussian set, without augmentation; their default draws images with an
    untrained StyleGAN. A step costs two forward and backward passes; BatchNorm sees real samples first and virtual ones second.
    List VHL after methods that change the head, such as MOON with a projection.

    Tang et al., Virtual Homogeneity Learning, ICML 2022, https://arxiv.org/abs/2206.02465; https://github.com/wizard1203/VHL.

    Args:
        virtual: weight of the virtual samples' cross-entropy, >= 0.
        align: weight of the contrast of real and virtual features, >= 0.
        virtual_align: weight of the contrast among virtual features, >= 0.
        temperature: temperature of both contrasts, > 0.
        batch_size: virtual samples in a step, >= 1.
        samples_per_class: virtual samples of each class, >= 1.
        std: spread of a virtual class about its mean, >= 0; the means have a spread of 1.
        seed: seed of the virtual set and the new outputs.
    """

    virtual: float = option(1.0, ">= 0")
    align: float = option(1.0, ">= 0")
    virtual_align: float = option(0.1, ">= 0")
    temperature: float = option(0.07, "> 0")
    batch_size: int = option(128, ">= 1")
    samples_per_class: int = option(200, ">= 1")
    std: float = option(0.5, ">= 0")
    seed: int = option(0, ">= 0")

    tasks = ("classification",)
    plain_batches = True

    def configure_model(self, model: ClientModule) -> ClientModule:
        model = copy.deepcopy(model)  # The user's module may serve another run.
        outputs, num_features = head_weight(self, model).shape
        extra = nn.Linear(num_features, outputs)
        rng, bound = torch.Generator().manual_seed(self.seed), 1 / math.sqrt(num_features)
        for value in extra.parameters():
            nn.init.uniform_(value, -bound, bound, generator=rng)
        model.model.virtual_head = extra
        return model

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        self._set(client.num_classes, example_of(client))  # fills the cache here, outside the client's vectorised program
        return {"order": torch.randperm(client.num_classes * self.samples_per_class, generator=rng)}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        weight, bias = (next(v for n, v in params.items() if n.endswith(f"virtual_head.{part}")) for part in ("weight", "bias"))
        inputs, labels = self._set(len(weight), batch.inputs)
        order = ctx.draws["order"]
        rows = order[rows_of_step(ctx.step, self.batch_size, len(labels), order.device)]
        inputs, labels = inputs[rows].to(batch.inputs.dtype), labels[rows]
        real, virtual = apply.features(params, batch.inputs), apply.features(params, inputs)
        outputs = torch.cat([apply(params, batch.inputs), F.linear(real, weight, bias)], 1)
        virtual_outputs = torch.cat([apply.head(params, virtual), F.linear(virtual, weight, bias)], 1)
        loss = masked_mean(F.cross_entropy(outputs, batch.targets, reduction="none"), batch.mask) - task_loss
        loss = loss + self.virtual * F.cross_entropy(virtual_outputs, labels + outputs.shape[1] - len(weight))
        mask = None if batch.mask is None else torch.cat([batch.mask, torch.ones_like(labels, dtype=batch.mask.dtype)])
        both, both_labels = torch.cat([real, virtual.detach()]), torch.cat([batch.targets, labels])
        loss = loss + self.align * supervised_contrast(both, both_labels, self.temperature, mask)
        return loss + self.virtual_align * supervised_contrast(virtual, labels, self.temperature)

    def _set(self, num_classes: int, like: Tensor) -> tuple[Tensor, Tensor]:
        shape, dtype = tuple(like.shape[1:]), torch.get_default_dtype()
        return virtual_set(self.seed, num_classes, self.samples_per_class, self.std, shape, dtype, like.device)
