"""CIFAR-10 and CIFAR-100, as torchvision downloads and stores them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flcog.core.checks import at_least, within
from flcog.data import Samples, Splits
from flcog.datamodules.augmentations import Augmentation
from flcog.datamodules.files import reading, require_files
from flcog.datamodules.torchvision_images import TorchvisionImages


@dataclass(frozen=True)
class Enlarge:
    """Enlarge model inputs to squares of ``size`` on their device."""

    preprocess: Callable[[Tensor], Tensor]
    size: int

    def __call__(self, inputs: Tensor) -> Tensor:
        return F.interpolate(self.preprocess(inputs), size=(self.size, self.size), mode="bilinear")


class CIFAR10(TorchvisionImages):
    """50,000 training and 10,000 test photographs of 10 kinds of things, 32x32 in colour.

    Reads ``<data_dir>/cifar-10-batches-py`` (Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html), which torchvision
    downloads where ``download`` is set, and checks against the published md5 sums.

    Args:
        data_dir: the folder with ``cifar-10-batches-py``.
        download: whether to download missing files.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``.
        mean: subtracted from each channel, on the [0, 1] scale; FedCOG's, FedDisco's and Fedssyn's by default.
        std: divides each channel; as ``mean``.
        val_fraction: the last part of the training images, in file order, that becomes a central validation set instead. Fedssyn
            holds out 0.1 (https://github.com/lyn1874/fedssyn).
        image_size: the side to which images are enlarged, bilinearly and after augmentation, for models that need more than 32
            pixels; None for no change.
    """

    num_classes = 10
    _name = "CIFAR10"

    def __init__(
        self,
        data_dir: str = "data",
        download: bool = False,
        augmentation: Augmentation = "crop-flip",
        mean: tuple[float, float, float] = (0.4914, 0.4822, 0.4465),
        std: tuple[float, float, float] = (0.2023, 0.1994, 0.2010),
        val_fraction: float = 0.0,
        image_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        within(self, "[0, 1)", val_fraction=val_fraction)
        at_least(self, 32, image_size=image_size, hint="null keeps the size of the files' images")
        self.data_dir, self.download, self.augmentation = data_dir, download, augmentation
        self.mean, self.std, self.val_fraction, self.image_size = mean, std, val_fraction, image_size

    @property
    def _by_hand(self) -> str:
        return f"unpack {self._source.url} there"

    def load(self) -> Splits:
        train, test = self._read(train=True), self._read(train=False)
        if not self.val_fraction:
            return Splits(train, test)
        kept = len(train) - round(len(train) * self.val_fraction)
        return Splits(train.subset(np.arange(kept)), test, val=train.subset(np.arange(kept, len(train))))

    def preprocess(self) -> Callable[[Tensor], Tensor]:
        preprocess = super().preprocess()
        return preprocess if self.image_size is None else Enlarge(preprocess, self.image_size)

    def _read(self, train: bool) -> Samples:
        name, folder = self._name, Path(self.data_dir) / self._source.base_folder
        files = [name for name, _ in self._source.train_list + self._source.test_list] + [self._source.meta["filename"]]
        remedy = f"pass --data.download true, or {self._by_hand}"
        require_files(name, [folder / file for file in files], remedy)
        with reading(folder, remedy):
            source = self._source(self.data_dir, train=train)
        self.class_names = tuple(source.classes)
        return Samples(torch.from_numpy(source.data), torch.tensor(source.targets))


class CIFAR100(CIFAR10):
    """50,000 training and 10,000 test photographs of 100 kinds of things, 32x32 in colour.

    Reads ``<data_dir>/cifar-100-python`` (Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html), which torchvision
    downloads where ``download`` is set, and checks against the published md5 sums.

    Args:
        data_dir: the folder with ``cifar-100-python``.
        download: whether to download missing files.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``; FedDisco also rotates.
        mean: subtracted from each channel, on the [0, 1] scale; FedCOG's by default, (0.5071, 0.4867, 0.4408) in Fedssyn.
        std: divides each channel; FedCOG's by default, (0.2675, 0.2565, 0.2761) in Fedssyn.
        val_fraction: the last part of the training images, in file order, that becomes a central validation set instead.
        image_size: the side to which images are enlarged, as in CIFAR-10; None for no change.
    """

    num_classes = 100
    _name = "CIFAR100"

    def __init__(
        self,
        data_dir: str = "data",
        download: bool = False,
        augmentation: Augmentation = "crop-flip",
        mean: tuple[float, float, float] = (0.5071, 0.4865, 0.4409),
        std: tuple[float, float, float] = (0.2673, 0.2564, 0.2762),
        val_fraction: float = 0.0,
        image_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(data_dir, download, augmentation, mean, std, val_fraction, image_size, **kwargs)
