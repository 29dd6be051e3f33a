"""Turns torch data sets, loaders and Lightning's data modules into federated data modules."""

from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flcog.core.lightning_packages import lightning_base
from flcog.data import FederatedDataModule
from flcog.datamodules.lightning_data import LightningData
from flcog.datamodules.stand_ins import Loaders
from flcog.datamodules.torch_dataset import TorchDataset


def federated(data: Any) -> FederatedDataModule:
    """The data as a federation's: a data module of ours as it is, anything else divided as its note says.

    Args:
        data: a :class:`FederatedDataModule`, a map-style torch data set, a ``DataLoader`` of one, or a ``LightningDataModule``.
    """
    if isinstance(data, FederatedDataModule):
        return data
    if lightning_base(data, "LightningDataModule") or isinstance(data, DataLoader):
        wrapped = LightningData(Loaders(data) if isinstance(data, DataLoader) else data)
        wrapped.is_by_default = True
        return wrapped
    if isinstance(data, Dataset):
        module = TorchDataset(data)
        module.notes = (
            f"a {type(data).__name__} is divided over {module.num_clients} clients at random, in batches of {module.batch_size}; no test "
            "set: flcog.datamodules.TorchDataset takes num_clients, partitioner, users, batch_size, test",
        )
        return module
    raise ValueError(f"data is a {type(data).__name__}: {_advice(data)}")


def _advice(data: Any) -> str:
    """The call that takes data of this kind."""
    kind = f"{type(data).__module__.split('.')[0]}.{type(data).__name__}"
    if kind in ("datasets.Dataset", "datasets.DatasetDict"):
        return 'give flcog.datamodules.HuggingFace(data, input="image", target="label"), with the names of its columns'
    if kind == "pandas.DataFrame":
        return 'give flcog.datamodules.Table(data, target="label"), with the name of its column'
    if isinstance(data, Tensor | np.ndarray) or (isinstance(data, tuple | list) and len(data) == 2):
        return "give flcog.datamodules.ArrayData(train_inputs=..., train_targets=...)"
    return (
        "give a flcog.FederatedDataModule (flcog.datamodules has many), a map-style torch.utils.data.Dataset, a DataLoader of a "
        "map-style data set, or a LightningDataModule"
    )
