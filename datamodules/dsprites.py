"""dSprites: images of white squares, ellipses and hearts, split over twelve clients by shape and place."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from flcog.core.checks import at_least
from flcog.core.files import arrays_in
from flcog.data import Samples, Splits
from flcog.datamodules.augmentations import AugmentedImages
from flcog.datamodules.files import reading, require_files

_FILE = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
_URL = f"https://github.com/google-deepmind/dsprites-dataset/raw/master/{_FILE}"


class DSprites(AugmentedImages):
    """737,280 images, 64x64, of a square, an ellipse or a heart; each of 12 clients sees one shape in one quarter of the image.

    Reads ``dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz`` (Matthey et al. 2017,
    https://github.com/google-deepmind/dsprites-dataset) as Fedssyn does (https://arxiv.org/abs/2306.13263, section A.4): the
    classes are the shapes, a random tenth of each client's images forms the central test set, and each client keeps 55,296.
    Client 4 s + 2 b + r has shape s, in the bottom half if b = 1, and in the right half if r = 1. A partitioner other than the
    default, ``Natural``, replaces this split.

    All images take 3 GB of memory, and as much again while they are read.

    Args:
        data_dir: the folder with the file.
        samples_per_client: training images of each client, drawn at random; None takes all. Test sets shrink by the same factor.
    """

    num_classes = 3
    class_names = ("square", "ellipse", "heart")
    mean, std = 0.0, 1 / 255  # pixels are 0 and 1 as bytes, not 0 and 255

    def __init__(self, data_dir: str = "data/dsprites", samples_per_client: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        at_least(self, 1, samples_per_client=samples_per_client)
        self.data_dir, self.samples_per_client = Path(data_dir), samples_per_client

    def load(self) -> Splits:
        path = self.data_dir / _FILE
        require_files("DSprites", [path], f"download {_URL} and pass --data.data_dir")
        with reading(path), arrays_in(path) as arrays:
            # Columns: colour, shape, scale, orientation, x from left to right, y from top to bottom.
            factors, images = arrays["latents_classes"], arrays["imgs"]
        shape, right, bottom = factors[:, 1], factors[:, 4] >= 16, factors[:, 5] >= 16
        clients = 4 * shape + 2 * bottom + right
        targets = torch.from_numpy(shape.astype(np.int64))
        parts = self._choose(clients)
        return Splits(*(Samples(torch.from_numpy(images[own, ..., None]), targets[own], clients[own]) for own in parts))

    def _choose(self, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Training and test images, in file order."""
        rng = np.random.Generator(np.random.PCG64(self.partition_seed))
        train, test = [], []
        for client in range(12):
            own = rng.permutation(np.flatnonzero(clients == client))
            num_test = round(len(own) / 10)
            if self.samples_per_client is not None:
                if self.samples_per_client > len(own) - num_test:
                    raise ValueError(
                        f"samples_per_client is {self.samples_per_client}, and client {client} has {len(own) - num_test}"
                    )
                own = own[: round(self.samples_per_client / 0.9)]
                num_test = len(own) - self.samples_per_client
            test.append(own[:num_test])
            train.append(own[num_test:])
        return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))
