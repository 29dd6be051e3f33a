"""MNIST and Fashion-MNIST, as torchvision downloads and stores them."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flcog.core.checks import at_least
from flcog.data import Samples, Splits
from flcog.datamodules.augmentations import Augmentation
from flcog.datamodules.files import reading, require_files
from flcog.datamodules.torchvision_images import TorchvisionImages


class MNIST(TorchvisionImages):
    """60,000 training and 10,000 test images of handwritten digits, 28x28 in grey.

    Reads ``<data_dir>/MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte``, or the published archives of the same names and
    ``.gz`` (LeCun et al. 1998, http://yann.lecun.com/exdb/mnist), which torchvision downloads if ``download`` is set.

    Args:
        data_dir: the folder with ``MNIST/raw``.
        download: whether to download missing files. Existing archives are checked and unpacked without a network.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``.
        mean: subtracted from pixels, on the [0, 1] scale.
        std: divides pixels, on the [0, 1] scale.
        samples_per_class: the number of training images of each digit to keep, in file order; Fedssyn's study of shuffling takes
            1,024 (https://arxiv.org/abs/2306.13263, section A.3.1). None keeps all.
    """

    num_classes = 10
    class_names: tuple[str, ...] = tuple("0123456789")
    _name = "MNIST"

    def __init__(
        self,
        data_dir: str = "data",
        download: bool = False,
        augmentation: Augmentation = "none",
        mean: float = 0.1307,
        std: float = 0.3081,
        samples_per_class: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        at_least(self, 1, samples_per_class=samples_per_class)
        self.data_dir, self.download, self.augmentation = data_dir, download, augmentation
        self.mean, self.std, self.samples_per_class = mean, std, samples_per_class

    @property
    def _by_hand(self) -> str:
        return f"put the .gz files of {self._source.mirrors[0]} there"

    def load(self) -> Splits:
        raw = Path(self.data_dir) / self._name / "raw"
        names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
        paths = [_as_it_lies_there(raw / name) for name in names]
        require_files(self._name, paths, f"pass --data.download true, or {self._by_hand}")
        train, test = self._read(*paths[:2]), self._read(*paths[2:])
        if self.samples_per_class is not None:
            positions = [np.flatnonzero(train.targets == label)[: self.samples_per_class] for label in range(self.num_classes)]
            train = train.subset(np.sort(np.concatenate(positions)))
        return Splits(train, test)

    def _read(self, images: Path, labels: Path) -> Samples:
        return Samples(_read_idx(images, 3).unsqueeze(-1), _read_idx(labels, 1).long())


def _as_it_lies_there(path: Path) -> Path:
    """The file, or its archive where only that is there."""
    archive = path.with_name(f"{path.name}.gz")
    return archive if archive.exists() and not path.exists() else path


def _read_idx(path: Path, dimensions: int) -> Tensor:
    """Return the bytes of an IDX file, compressed or not."""
    with reading(path):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        shape = np.frombuffer(content, ">i4", dimensions, offset=4).tolist()
        values = np.frombuffer(content, np.uint8, offset=4 * (1 + dimensions))
        return torch.from_numpy(values.reshape(shape).copy())


class FashionMNIST(MNIST):
    """60,000 training and 10,000 test images of clothes, 28x28 in grey.

    Reads ``<data_dir>/FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte``, or the published archives of the same
    names and ``.gz`` (Xiao et al. 2017, https://github.com/zalandoresearch/fashion-mnist), which torchvision downloads where
    ``download`` is set.

    Args:
        data_dir: the folder with ``FashionMNIST/raw``.
        download: whether to download missing files. Existing archives are checked and unpacked without a network.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``. FedCOG crops and flips, FedDisco
            changes nothing.
        mean: subtracted from pixels, on the [0, 1] scale.
        std: divides pixels, on the [0, 1] scale.
        samples_per_class: the number of training images of each class to keep, in file order. None keeps all.
    """

    class_names = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
    _name = "FashionMNIST"

    def __init__(
        self,
        data_dir: str = "data",
        download: bool = False,
        augmentation: Augmentation = "crop-flip",
        mean: float = 0.5,
        std: float = 0.5,
        samples_per_class: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(data_dir, download, augmentation, mean, std, samples_per_class, **kwargs)
