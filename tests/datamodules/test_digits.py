"""Digits with images of any size."""

import pytest
import torch

from datamodules.common import everything, one_line
from flcog.datamodules import Digits, Dirichlet


@pytest.mark.parametrize("size", [8, 28, 32])
def test_digits(size: int) -> None:
    data = Digits(image_size=size, num_clients=10, partitioner=Dirichlet(0.5))
    federation = data.federation
    assert federation.test is not None and federation.num_clients == 10 and federation.num_classes == 10
    assert (len(federation.train), len(federation.test)) == (1442, 355)
    assert federation.train.inputs.shape[1:] == (size, size, 1) and federation.train.inputs.dtype == torch.uint8
    assert federation.test.targets.bincount().tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    inputs, _ = everything(federation, federation.train)
    assert inputs.shape[1:] == (1, size, size) and inputs.is_contiguous(memory_format=torch.channels_last)
    assert abs(inputs.mean()) < 0.01 and (size == 8 or abs(inputs.std() - 1) < 0.02)
    assert Digits(image_size=size).federation.partition.hash == Digits(image_size=size).federation.partition.hash


def test_digits_too_small() -> None:
    with one_line(ValueError, "image_size must be at least 8"):
        Digits(image_size=4)
