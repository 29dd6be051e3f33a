"""Helpers that the tests of data sets share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonargparse
import numpy as np
import pytest
import torch
from harness import instantiated
from torch import Tensor

from flcog.data import FederatedDataModule, Federation, Samples

CPU = torch.device("cpu")


def everything(federation: Federation, samples: Samples) -> tuple[Tensor, Tensor]:
    return federation.load(samples, torch.arange(len(samples)), CPU)


@contextmanager
def one_line(error: type[Exception], message: str) -> Iterator[None]:
    with pytest.raises(error, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)


def bytes_of(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def parse(*arguments: str) -> FederatedDataModule:
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedDataModule, "data")
    return instantiated(parser, parser.parse_args(arguments)).data


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})
    return str(path)
