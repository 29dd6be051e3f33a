"""RandomData: random inputs and labels, for timing and trying out without a data set."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flcog.core import checks
from flcog.data import IID, Partitioner, Samples, Splits
from flcog.datamodules.augmentations import Augmentation, AugmentedImages


class RandomData(AugmentedImages):
    """Random inputs and labels, for timing and trying out: there is nothing to learn from them.

    Use it to time a model, a cluster or a configuration without a data set. Labels do not depend on inputs, so accuracies mean
    nothing.

    Images are stored as in other data sets, one byte per value, and reach the model with mean 0, standard deviation 1, and
    channels first. Rows of features are standard normal. Token ids range from 1 to ``vocab_size`` - 1, because 0 is padding.
    Classes have equal numbers of samples, up to one, and so have the ``num_clients`` users, which ``Natural`` turns into clients.

    Args:
        shape: shape of one input: height, width and channels of an image; or the number of features or tokens.
        vocab_size: number of token ids, including padding, as in the model; None for images and features.
        num_samples: size of the training set.
        num_test_samples: size of the test set; 0 for none.
        num_classes: the number of labels.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``; they take time, too.
        seed: seed of the samples.

    Example:
        >>> data = RandomData(shape=[28, 28, 1], num_samples=600)
        >>> data.federation.train.inputs.shape
        torch.Size([600, 28, 28, 1])
    """

    def __init__(
        self,
        shape: Sequence[int] = (32, 32, 3),
        vocab_size: int | None = None,
        num_samples: int = 10_000,
        num_test_samples: int = 1_000,
        num_classes: int = 10,
        augmentation: Augmentation = "none",
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.partitioner: Partitioner | None = self.partitioner or IID()
        checks.at_least(self, 1, num_samples=num_samples, num_classes=num_classes)
        checks.at_least(self, 0, num_test_samples=num_test_samples)
        checks.at_least(self, 2, vocab_size=vocab_size, hint="id 0 is padding")
        checks.all_at_least(self, 1, shape=shape)
        checks.one_of(self, (1, 3), **{"the length of shape": len(shape)}, hint="height, width and channels, or a row's length")
        self.shape, self.vocab_size, self.augmentation = tuple(shape), vocab_size, augmentation
        self.num_samples, self.num_test_samples, self.num_classes, self.seed = num_samples, num_test_samples, num_classes, seed
        checks.seed(self, "seed")
        if vocab_size if self._are_images else augmentation != "none":
            raise ValueError(
                "RandomData: vocab_size belongs to rows, and augmentation to images; give the other shape, or leave it out"
            )
        if self._are_images:
            self.mean, self.std = 0.5, 0.2898  # the moments of bytes over 255

    def load(self) -> Splits:
        return Splits(self._drawn(self.num_samples, 0), self._drawn(self.num_test_samples, 1) if self.num_test_samples else None)

    @property
    def _are_images(self) -> bool:
        return len(self.shape) == 3

    def _drawn(self, count: int, part: int) -> Samples:
        rng = np.random.default_rng([self.seed, part])
        targets = rng.permutation(np.arange(count) % self.num_classes)
        users = np.arange(count) * self.num_clients // count
        return Samples(torch.from_numpy(self._inputs(rng, count)), torch.from_numpy(targets), users)

    def _inputs(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Inputs, drawn directly in their stored type to save memory."""
        size = (count, *self.shape)
        if self._are_images:
            return rng.integers(0, 256, size, dtype=np.uint8)
        if self.vocab_size is not None:
            return rng.integers(1, self.vocab_size, size, dtype=np.int32)
        return rng.standard_normal(size, dtype=np.float32)
