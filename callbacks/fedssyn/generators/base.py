"""DataGenerator: the interface of class-conditional generators, and the form, subset and labels of a client's samples."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flcog.core.checks import check_options
from flcog.core.randomness import fold
from flcog.core.source import Source
from flcog.data import Federation, Samples

Sampler = Callable[[Tensor], Tensor]
"""From labels [B] to inputs [B, ...] in the form of the training inputs."""

Log = Callable[[int, dict[str, float]], None]
"""``log(epochs done, figures)``, after every epoch."""


class DataGenerator(ABC):
    """A class-conditional generator that a client trains on its own samples.

    Subclasses are frozen dataclasses of hyper-parameters. They draw from torch's global random stream, which the caller has
    seeded for this client, so they need no random generator of their own.
    """

    def __post_init__(self) -> None:
        check_options(self)

    @abstractmethod
    def train(self, inputs: Tensor, labels: Tensor, num_classes: int, log: Log) -> Sampler:
        """Learn from a client's samples.

        Args:
            inputs: images [n, C, H, W] of values in [0, 1], or rows of a table [n, D].
            labels: their classes [n].
            num_classes: number of the task's classes; the client may have fewer.
            log: receives each epoch's losses.
        """


@dataclass(frozen=True)
class Form:
    """How a data set stores its inputs, and the conversion to a generator's values and back.

    Images are stored [N, H, W, C]; other inputs are rows of a table. ``white`` is the stored value of a full pixel: 255 for bytes (1 if
    all bytes are 0 or 1, as in dSprites), 1 for floats.
    """

    images: bool
    white: float
    dtype: torch.dtype

    @classmethod
    def of(cls, samples: Samples) -> "Form":
        """The form of a set's inputs; an error if they cannot be generated."""
        if isinstance(samples.inputs, Source):
            raise ValueError(
                "synthetic data need inputs in memory or in a cache, and these are read from files during training: set cache_dir"
            )
        first = torch.as_tensor(samples.inputs[:1000])
        if first.ndim not in (2, 4) or not (first.dtype == torch.uint8 or first.is_floating_point()):
            raise ValueError(f"generators make images or rows of numbers; got {first.dtype} of shape {tuple(first.shape[1:])}")
        if first.ndim == 4 and first.is_floating_point() and not 0 <= float(first.min()) <= float(first.max()) <= 1:
            raise ValueError("images stored as floats must lie in [0, 1] to be generated: rescale them, or store bytes")
        binary = first.dtype == torch.uint8 and int(first.max()) <= 1
        return cls(first.ndim == 4, 255.0 if first.dtype == torch.uint8 and not binary else 1.0, first.dtype)

    def encode(self, stored: Tensor) -> Tensor:
        """Stored inputs as a generator sees them.

        >>> Form(True, 255.0, torch.uint8).encode(torch.full((1, 2, 2, 3), 51, dtype=torch.uint8)).mean((2, 3))
        tensor([[0.2000, 0.2000, 0.2000]])
        """
        values = stored.float()
        return (values / self.white).permute(0, 3, 1, 2).contiguous() if self.images else values

    def decode(self, values: Tensor) -> Tensor:
        """The inverse of ``encode``, clipped and rounded to values that the data set can store."""
        if self.images:
            values = values.permute(0, 2, 3, 1).clamp(0, 1) * self.white
        values = values if self.dtype.is_floating_point else values.round()
        return values.to("cpu", self.dtype).contiguous()


def subset_of(federation: Federation, client: int, rho: float, seed: int) -> np.ndarray:
    """The samples on which a client trains its generator: round(rho n_k) of its own, drawn at random, at least one."""
    own = federation.partition.client(client)
    count = max(1, round(rho * len(own)))
    order = np.random.default_rng(fold(seed, client, "subset")).permutation(len(own))
    return own[np.sort(order[:count])]


def matching_labels(labels: Tensor, count: int, num_classes: int) -> Tensor:
    """``count`` labels, sorted, with the class frequencies of ``labels``; the largest remainders are rounded up.

    >>> matching_labels(torch.tensor([0, 0, 2]), 4, 3).tolist()
    [0, 0, 0, 2]
    """
    shares = torch.bincount(labels.cpu(), minlength=num_classes).double() / len(labels) * count
    counts = shares.floor().long()
    rest = (shares - counts).argsort(descending=True, stable=True)[: count - int(counts.sum())]
    counts[rest] += 1
    return torch.arange(num_classes).repeat_interleave(counts)


def finite(values: Tensor, client: int) -> Tensor:
    """A generator's output, or an error if its training diverged: stored as bytes, NaN would look like pixels."""
    if not torch.isfinite(values).all():
        raise ValueError(f"client {client}'s generator has diverged: it makes NaN or infinite values. Lower generator.lr")
    return values


def padded(images: Tensor, multiple: int) -> Tensor:
    """Pad images [B, C, H, W] with black below and on the right until both sides are multiples of ``multiple``."""
    height, width = images.shape[2:]
    return F.pad(images, (0, -width % multiple, 0, -height % multiple))
