"""MNIST and Fashion-MNIST, as torchvision downloads and stores them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torchvision
from torch import Tensor
from torchvision.datasets.mnist import read_image_file, read_label_file

from flcog.data import Augment, FederatedDataModule, Preprocess, Samples, Splits
from flcog.datamodules.augmentations import Augmentation, augmentation
from flcog.datamodules.files import reading, require_files


class MNIST(FederatedDataModule):
    """60,000 training and 10,000 test images of handwritten digits, 28x28 in grey.

    Reads ``<data_dir>/MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte`` (LeCun et al. 1998,
    http://yann.lecun.com/exdb/mnist), which torchvision downloads and unpacks where ``download`` is set.

    Args:
        data_dir: the folder that holds ``MNIST/raw``.
        download: get what is missing. Archives that lie there already are only checked and unpacked, without a network.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``.
        mean: subtracted from pixels, on the [0, 1] scale.
        std: divides pixels, on the [0, 1] scale.
        samples_per_class: keep only the first so many training images of each digit, in file order; Fedssyn's study of shuffling
            takes 1,024 (https://arxiv.org/abs/2306.13263, section A.3.1). None keeps all.
    """

    num_classes = 10
    class_names: tuple[str, ...] = tuple("0123456789")
    _source: ClassVar[type[torchvision.datasets.MNIST]] = torchvision.datasets.MNIST

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
        if samples_per_class is not None and samples_per_class < 1:
            raise ValueError(f"samples_per_class must be at least 1; got {samples_per_class}")
        self.data_dir, self.download, self.augmentation = data_dir, download, augmentation
        self.mean, self.std, self.samples_per_class = mean, std, samples_per_class

    def prepare_data(self) -> None:
        if self.download:
            self._source(self.data_dir, download=True)

    def load(self) -> Splits:
        raw = Path(self.data_dir) / self._source.__name__ / "raw"
        names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
        paths = [raw / name for name in names]
        remedy = f"pass --data.download true, or put the .gz files of {self._source.mirrors[0]} there and do the same"
        require_files(self._source.__name__, paths, remedy)
        train, test = self._read(*paths[:2]), self._read(*paths[2:])
        if self.samples_per_class is not None:
            positions = [np.flatnonzero(train.targets == label)[: self.samples_per_class] for label in range(self.num_classes)]
            kept = np.sort(np.concatenate(positions))
            train = Samples(torch.as_tensor(train.inputs)[kept], train.targets[kept])
        return Splits(train, test)

    def preprocess(self) -> Callable[[Tensor], Tensor]:
        return Preprocess((self.mean,), (self.std,))

    def augment(self) -> Augment | None:
        return augmentation(self.augmentation)

    @staticmethod
    def _read(images: Path, labels: Path) -> Samples:
        with reading(images):
            inputs = read_image_file(str(images)).unsqueeze(-1)
        with reading(labels):
            targets = read_label_file(str(labels))
            if len(targets) != len(inputs):
                raise ValueError(f"{len(targets)} labels for the {len(inputs)} images of {images.name}")
        return Samples(inputs, targets)


class FashionMNIST(MNIST):
    """60,000 training and 10,000 test images of clothes, 28x28 in grey.

    Reads ``<data_dir>/FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte`` (Xiao et al. 2017,
    https://github.com/zalandoresearch/fashion-mnist), which torchvision downloads and unpacks where ``download`` is set.

    Args:
        data_dir: the folder that holds ``FashionMNIST/raw``.
        download: get what is missing. Archives that lie there already are only checked and unpacked, without a network.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``. FedCOG crops and flips, FedDisco
            changes nothing.
        mean: subtracted from pixels, on the [0, 1] scale.
        std: divides pixels, on the [0, 1] scale.
        samples_per_class: keep only the first so many training images of each class, in file order. None keeps all.
    """

    class_names = tuple(torchvision.datasets.FashionMNIST.classes)
    _source = torchvision.datasets.FashionMNIST

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
