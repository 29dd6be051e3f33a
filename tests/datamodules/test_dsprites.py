"""dSprites on small files in its format."""

from pathlib import Path

import numpy as np
import torch

from datamodules.common import everything, one_line
from flcog.datamodules import Dirichlet, DSprites, dsprites


def write_dsprites(root: Path) -> np.ndarray:
    """Write images of all six factors, with fewer values of them. The first pixels of each image encode its number."""
    grid = np.stack(np.meshgrid([0], range(3), [0], range(2), range(0, 32, 4), range(0, 32, 4), indexing="ij"), -1).reshape(-1, 6)
    images = np.zeros((len(grid), 64, 64), np.uint8)
    images.reshape(len(grid), -1)[:, :10] = np.arange(len(grid))[:, None] >> np.arange(10) & 1
    np.savez_compressed(
        root / dsprites._FILE,
        metadata=np.array({"title": "dSprites dataset"}, dtype=object),
        imgs=images,
        latents_classes=grid.astype(np.int64),
        latents_values=grid.astype(float),
    )
    return grid


def test_dsprites(tmp_path: Path) -> None:
    grid = write_dsprites(tmp_path)
    federation = DSprites(str(tmp_path)).federation
    assert federation.num_clients == 12 and federation.test is not None
    own_size = len(grid) // 12
    assert federation.partition.sizes.tolist() == [own_size - round(own_size / 10)] * 12
    numbers = []
    for samples in (federation.train, federation.test):
        inputs, targets = everything(federation, samples)
        assert inputs.shape[1:] == (1, 64, 64) and set(inputs.unique().tolist()) == {0, 1}
        number = (inputs.flatten(1)[:, :10] * 2.0 ** torch.arange(10)).sum(1).long()
        assert np.array_equal(targets, grid[number, 1])
        numbers.append(number.numpy())
    assert sorted(np.concatenate(numbers)) == list(range(len(grid)))
    for k in range(12):
        own = grid[numbers[0][federation.partition.client(k)]]
        assert (own[:, 1] == k // 4).all() and ((own[:, 4:] >= 16) == [k % 2, k // 2 % 2]).all()


def test_dsprites_subset(tmp_path: Path) -> None:
    write_dsprites(tmp_path)
    federation = DSprites(str(tmp_path), samples_per_client=9).federation
    assert federation.partition.sizes.tolist() == [9] * 12 and federation.test is not None and len(federation.test) == 12
    with one_line(ValueError, r"samples_per_client is 99, and client 0 has \d+"):
        DSprites(str(tmp_path), samples_per_client=99).setup()
    assert DSprites(str(tmp_path), num_clients=4, partitioner=Dirichlet(1.0)).federation.num_clients == 4
