"""Times how fast flcog reads a data set's images, against a ``DataLoader`` over torchvision's transforms, as in tutorials.

python benchmarks/reading.py -c configs/quickstart.yaml
"""

import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from flcog.client.work import samples_per_block
from flcog.commands.bench.bare import wait_for_device
from flcog.commands.federated_cli import CommandCLI
from flcog.core.commands import TrainerCommand
from flcog.core.randomness import fold_each
from flcog.data import Samples

MOST = 16 * 2**20
"""The total size of the images that are read, in bytes: 5,461 images of 32 x 32 pixels, or 111 of 224 x 224."""


def reading(trainer: Any, model: Any, datamodule: Any, repeats: int = 5) -> None:
    """Print the seconds for reading an epoch's images or a part of them, augmented if the data module augments.

    Args:
        repeats: how often the images are read; medians are printed.
    """
    trainer.prepare(model, datamodule)
    federation, device = trainer.run.federation, trainer.run.processes.device
    samples = federation.train
    if getattr(samples.inputs, "ndim", 0) != 4 or samples.inputs.dtype not in (torch.uint8, np.uint8):
        raise SystemExit("only images can be read by torchvision's transforms: give a data set of images")
    count = min(len(samples), max(1, MOST // math.prod(samples.inputs.shape[1:])))
    size, batch_size = samples.inputs.shape[1], trainer.run.engine.batching.batch_size
    augmented = [transforms.RandomCrop(size, 4), transforms.RandomHorizontalFlip()] if federation.augment is not None else []
    loader = DataLoader(
        _Pictures(samples.to(torch.device("cpu")), transforms.Compose([*augmented, transforms.ToTensor()]), count),
        batch_size,
        shuffle=True,
    )
    ours, theirs = [], []
    for repeat in range(repeats):
        order = np.random.default_rng(repeat).permutation(count)
        keys = fold_each(repeat, order)
        began = time.perf_counter()
        block = max(1, samples_per_block(trainer.run.engine.reader))
        for first in range(0, count, block):
            indices = torch.from_numpy(order[first : first + block]).to(device)
            federation.load(samples, indices, device, keys[first : first + block])
        wait_for_device(device)
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in loader:
            pass
        theirs.append(time.perf_counter() - began)
    print(
        f"reading {count} images{', augmented' if augmented else ''}: {statistics.median(ours):.4f} s; "
        f"by a DataLoader over torchvision's transforms: {statistics.median(theirs):.4f} s"
    )


class _Pictures(Dataset):
    """Reads samples one by one as PIL images, with torchvision's transforms, as in tutorials."""

    def __init__(self, samples: Samples, transform: Callable[[Any], Tensor], count: int) -> None:
        self.samples, self.transform, self.count = samples, transform, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = np.asarray(self.samples.inputs[index])
        return self.transform(Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)), self.samples.targets[index]


if __name__ == "__main__":
    CommandCLI(["reading", *sys.argv[1:]], TrainerCommand("reading", "reading:reading"))
