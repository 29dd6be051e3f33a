"""The data of the trainer's verbs, which take loaders, torch data sets and data modules as ``lightning.Trainer`` does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from flcog.core.lightning_packages import lightning_base
from flcog.data import FederatedDataModule, Partition, Partitioner, Samples
from flcog.datamodules.lightning_data import LightningData, Loaders, loader_of
from flcog.datamodules.read_loader import the_loaders
from flcog.datamodules.torch_dataset import TorchDataset, is_one_each

PARTS = {"validate": "val", "test": "test", "predict": "test"}
"""The set that a verb evaluates."""


def with_datamodule(
    verb: str, arguments: tuple[Any, ...], options: Mapping[str, Any], clients: int, last: Any = None
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a verb with one data module in the place of loaders.

    ``fit(model, train_loader, val_loader)`` trains on the first set and validates on the second; ``test(model, loader)`` and
    ``validate(model, loader)`` evaluate one set. An evaluation, which trains no clients, has the least number that a round needs. ``last``
    is the data of the trainer's last run, if it has one.
    """
    rest, named, part = list(arguments), dict(options), PARTS.get(verb, "train")
    keywords = {"train_dataloaders": "train", "val_dataloaders": "val", "dataloaders": part}
    for name in keywords:  # Lightning takes a data module in the place of loaders, too
        if lightning_base(named.get(name), "LightningDataModule") is not None and named.get("datamodule") is None:
            named["datamodule"] = named.pop(name)
    given = {keywords[name]: named.pop(name) for name in keywords if name in named}
    if len(rest) > 2 and not isinstance(rest[2], str | Path | None):
        given["val"] = rest.pop(2)
    if len(rest) > 1 and (given or part != "train") and isinstance(rest[1], DataLoader | Dataset | list | dict):
        given[part] = rest.pop(1)
    loaders = {name: _loaders(loader, verb, name) for name, loader in given.items() if loader is not None}
    if not loaders:
        data = _data(verb, rest, named, last)
        if alone := _alone(verb, data):
            data = _evaluated(alone, clients)
        return ([rest[0], data, *rest[2:]], named) if len(rest) > 1 else (rest, named | {"datamodule": data})
    if len(rest) > 1 or named.get("datamodule") is not None:
        raise ValueError(f"{verb} takes a data module or loaders; got both: leave one of them out")
    if part not in loaders:
        raise ValueError(f"{verb} needs a training set; got a validation set alone: give train_dataloaders, too")
    if part != "train":
        return rest, named | {"datamodule": _evaluated(_given(**{"train": loaders[part][:1]} | loaders), clients)}
    return rest, named | {"datamodule": _given(**loaders)}


@dataclass(frozen=True)
class _Anyhow(Partitioner):
    """Gives every client a sample. If there are fewer samples than clients, some clients have the same one."""

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        count = len(samples)
        return Partition.from_clients(np.array_split(np.arange(max(count, num_clients)) % count, num_clients))


def _evaluated(loaders: Loaders, clients: int) -> LightningData:
    """The data of a run that evaluates them and trains no client."""
    return LightningData(loaders, num_clients=clients, partitioner=_Anyhow())


def _data(verb: str, rest: Sequence[Any], named: Mapping[str, Any], last: Any) -> Any:
    """The data of a verb without loaders. None means the last run's, as they are."""
    data, model = rest[1] if len(rest) > 1 else named.get("datamodule"), rest[0] if rest else named.get("model")
    if data is not None:
        return data
    if loader_of(model, "LightningModule", "predict" if verb == "predict" else PARTS.get(verb, "train")):
        return _of_module(model)
    if verb == "predict":
        return last if named.get("inputs") is None and _alone(verb, last) else None
    if verb not in PARTS or last is None:
        raise ValueError(f"{verb} needs data: give a data set, a loader or a data module, as in trainer.{verb}(model, loader)")
    return None


def _alone(verb: str, data: Any) -> Loaders | None:
    """The loader that a verb needs alone: that of predictions, or of data without a training set. None for all loaders."""
    if verb not in PARTS or isinstance(data, FederatedDataModule) or not _has_loaders(data):  # flcog's own modules have none
        return None
    source = data if isinstance(data, Loaders) else Loaders.of(data)
    if verb == "predict" and "predict" in source.by_part:
        return _only(source, "predict")
    return _only(source, PARTS[verb]) if PARTS[verb] in source.by_part and "train" not in source.by_part else None


def _has_loaders(data: Any) -> bool:
    return isinstance(data, Loaders) or lightning_base(data, "LightningDataModule") is not None


def _loaders(data: Any, verb: str, part: str) -> list[DataLoader]:
    """The loaders, or one of a data set with the default batch size of flcog's data modules."""
    if isinstance(data, Dataset):
        return [DataLoader(data, batch_size=64, shuffle=part == "train")]
    return the_loaders(data, "predict" if verb == "predict" else part)


def _given(**loaders: Any) -> Loaders:
    """Loaders of the user's, by part."""
    return Loaders("DataLoader", {part: lambda own=loader: own for part, loader in loaders.items()})


def _of_module(module: Any) -> Loaders:
    """The loaders that a module defines itself, for verbs without data."""
    own = {part: make for part in ("train", "val", "test", "predict") if (make := loader_of(module, "LightningModule", part))}
    return Loaders(f"loader of {type(module).__name__}", own, module=module, set_up=module.setup)


def _only(source: Loaders, part: str) -> Loaders:
    """One loader alone, whose set is evaluated: ``val``, ``test`` or ``predict``."""

    def loaders() -> list[DataLoader]:
        return the_loaders(source.by_part[part](), part)

    def set_up(stage: str) -> None:
        if stage == "fit":  # LightningData calls it again for tests
            source.set_up({"val": "validate"}.get(part, part))

    by_part = {"train": lambda: next(iter(loaders()), None), "val" if part == "val" else "test": loaders}
    return replace(source, by_part=by_part, set_up=set_up)


def federated(data: Any) -> FederatedDataModule:
    """The data as a federation's: a data module of ours as it is, anything else divided as its note says."""
    if isinstance(data, FederatedDataModule):
        return data
    if isinstance(data, DataLoader) or _has_loaders(data):
        wrapped = LightningData(_given(train=data) if isinstance(data, DataLoader) else data)
        wrapped.is_by_default = True
        return wrapped
    if isinstance(data, Dataset):
        module = TorchDataset(data)
        module.notes = (
            f"a {type(data).__name__} is divided over {module.num_clients} clients at random, in batches of {module.batch_size}; no test "
            "set: flcog.datamodules.TorchDataset takes num_clients, partitioner, users, batch_size, test",
        )
        return module
    if is_one_each(data):
        return TorchDataset(data)
    raise ValueError(
        f"data is a {type(data).__name__}: give a map-style torch.utils.data.Dataset, a list with one for each client, a DataLoader, a "
        "LightningDataModule, or a flcog.FederatedDataModule (flcog.datamodules has ArrayData for arrays, Table for data frames, "
        "HuggingFace and many others)"
    )
