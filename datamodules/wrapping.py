"""What people have in the place of a federated data module: torch data sets, loaders, Lightning's data modules."""

from collections.abc import Mapping
from typing import Any

import lightning as L
import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler, default_collate

from flcog.data import FederatedDataModule
from flcog.datamodules.item_sets import ItemSet
from flcog.datamodules.torch_dataset import PARTS, TorchDataset, require_map_style

NEVER_CALLED = ("on_before_batch_transfer", "on_after_batch_transfer", "transfer_batch_to_device")
"""Hooks of a data module without which the training would be another one."""

WORKERS = 2
"""Processes that read where a loader leaves it to the training process, which has clients to train."""


def federated(data: Any) -> FederatedDataModule:
    """The data as a federation's: a data module of ours as it is, anything else divided as its note says.

    Args:
        data: a :class:`FederatedDataModule`, a map-style torch data set, a ``DataLoader`` of one, or a ``LightningDataModule``.
    """
    if isinstance(data, FederatedDataModule):
        return data
    if isinstance(data, L.LightningDataModule):
        return LightningData(data)
    if isinstance(data, DataLoader):
        return LightningData(_Loader(data))
    if isinstance(data, Dataset):
        module = TorchDataset(data)
        module.notes = (_note(module, f"a {type(data).__name__}"),)
        return module
    raise ValueError(f"data is a {type(data).__name__}: {_advice(data)}")


class LightningData(TorchDataset):
    """The sets of a ``LightningDataModule``'s loaders, whose batch size, ``collate_fn`` and number of workers are taken over.

    Args:
        module: what has ``train_dataloader`` and, where there are such sets, ``val_dataloader`` and ``test_dataloader``.
    """

    batch_size: int

    def __init__(self, module: L.LightningDataModule) -> None:
        for name in NEVER_CALLED:
            if getattr(type(module), name) is not getattr(L.LightningDataModule, name):
                raise ValueError(
                    f"{type(module).__name__}.{name} would never be called in federated training: change inputs in the data set's own "
                    "transform, or write a flcog.FederatedDataModule with preprocess() or augment()"
                )
        super().__init__(_Unread())
        self.module = module

    def prepare_data(self) -> None:
        self.module.prepare_data()

    def _parts(self) -> Mapping[str, ItemSet]:
        self.module.setup("fit")
        loaders = {"train": self._loader("train"), "val": self._loader("val")}
        self.module.setup("test")
        found = {part: loader for part, loader in (loaders | {"test": self._loader("test")}).items() if loader is not None}
        if "train" not in found:
            raise ValueError(f"{type(self.module).__name__} has no train_dataloader: write one, or give its training set alone")
        train = found["train"]
        self.sets = {part: found[part].dataset for part in PARTS if part in found}
        self.batch_size = train.batch_size or self.batch_size
        self.eval_batch_size = max(loader.batch_size or 1 for loader in found.values())
        self.drop_last, self.num_workers = train.drop_last, train.num_workers or WORKERS
        self.collate_fn = None if train.collate_fn is default_collate else train.collate_fn
        self.notes = (_note(self, f"a {type(self.module).__name__}") + _note_on_sampler(train),)
        return super()._parts()

    def _loader(self, part: str) -> DataLoader | None:
        hook = f"{part}_dataloader"
        if getattr(type(self.module), hook) is getattr(L.LightningDataModule, hook):
            return None
        loader = getattr(self.module, hook)()
        if isinstance(loader, list | tuple) and len(loader) == 1:
            loader = loader[0]
        if loader is not None and not isinstance(loader, DataLoader):
            raise ValueError(
                f"{type(self.module).__name__}.{hook} returns a {type(loader).__name__}, and clients share the data set of one "
                "torch DataLoader: return one, or give the sets to flcog.datamodules.TorchDataset"
            )
        if loader is not None:
            require_map_style(loader.dataset, part)
        return loader


class _Loader(L.LightningDataModule):
    """A loader alone."""

    def __init__(self, loader: DataLoader) -> None:
        super().__init__()
        self._train = loader

    def train_dataloader(self) -> DataLoader:
        return self._train


class _Unread(Dataset):
    """Stands where the training set will be, once its module is set up."""

    def __getitem__(self, index: int) -> Any:
        raise IndexError(index)

    def __len__(self) -> int:
        return 0


def _note(module: TorchDataset, what: str) -> str:
    tests = "" if "test" in module.sets else "; no test set"
    return (
        f"{what} is divided over {module.num_clients} clients at random, in batches of {module.batch_size}{tests}: "
        "flcog.datamodules.TorchDataset takes num_clients, partitioner, users, batch_size, test"
    )


def _note_on_sampler(loader: DataLoader) -> str:
    sampler = loader.sampler
    return "" if isinstance(sampler, RandomSampler | SequentialSampler) else f"; its {type(sampler).__name__} is not used"


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
        "give a flcog.FederatedDataModule such as those of flcog.datamodules, a map-style torch.utils.data.Dataset, a DataLoader of "
        "one, or a LightningDataModule"
    )
