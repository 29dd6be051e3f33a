"""Digits: the 1,797 handwritten digits that ship with scikit-learn, so that a first run needs no download."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from flcog.core.checks import at_least
from flcog.data import Samples, Splits
from flcog.datamodules.augmentations import AugmentedImages


class Digits(AugmentedImages):
    """1,797 handwritten digits, 8x8 in sixteen greys, enlarged to the image size of MNIST or CIFAR.

    Reads scikit-learn's copy of the test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998,
    https://archive.ics.uci.edu/dataset/80). Every fifth sample of each class, in file order, is the test set: 355 images by all
    writers, because the file is sorted by writer.

    Args:
        image_size: the side of the square, single-channel images, enlarged bilinearly: 28 as in MNIST, 32 as in CIFAR, 8 for no
            change.

    Example:
        >>> data = Digits(num_clients=5)
        >>> data.federation.train.inputs.shape
        torch.Size([1442, 28, 28, 1])
    """

    num_classes = 10
    class_names = tuple("0123456789")
    mean, std = 0.3051, 0.3248

    def __init__(self, image_size: int = 28, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        at_least(self, 8, image_size=image_size, hint="8 is the size of the originals")
        self.image_size = image_size

    def load(self) -> Splits:
        # The file alone: importing scikit-learn, and with it pandas and scipy.stats, takes more than a second.
        package = find_spec("sklearn")
        assert package is not None and package.origin is not None
        table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
        labels = table[:, -1].astype(np.int64)
        images = torch.from_numpy(table[:, :-1]).float().view(-1, 1, 8, 8) * (255 / 16)
        images = interpolate(images, size=(self.image_size, self.image_size), mode="bilinear").round().to(torch.uint8)
        images, targets = images.permute(0, 2, 3, 1).contiguous(), torch.from_numpy(labels)
        is_test = np.zeros(len(targets), bool)
        for label in range(self.num_classes):
            is_test[np.flatnonzero(labels == label)[4::5]] = True
        samples = Samples(images, targets)
        return Splits(samples.subset(np.flatnonzero(~is_test)), samples.subset(np.flatnonzero(is_test)))
