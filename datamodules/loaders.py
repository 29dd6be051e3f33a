"""The data of the trainer's verbs, which take loaders as ``lightning.Trainer`` does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from flcog.core.lightning_packages import lightning_base, overrides
from flcog.data import FederatedDataModule, Partition, Partitioner, Samples
from flcog.datamodules.lightning_data import LightningData
from flcog.datamodules.stand_ins import EvaluatedLoader, Loaders, OwnLoaders, StandIn, the_loaders

PARTS = {"validate": "val", "test": "test", "predict": "test"}
"""The set that a verb evaluates."""


def with_datamodule(
    verb: str, arguments: tuple[Any, ...], options: Mapping[str, Any], clients: int, last: Any = None
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a verb with one data module in the place of loaders.

    ``fit(model, train_loader, val_loader)`` trains on the first set and validates on the second; ``test(model, loader)`` and
    ``validate(model, loader)`` evaluate one set.

    Args:
        verb: the name of the trainer's method.
        arguments, options: the user's.
        clients: the least number of clients that a round needs. An evaluation, which trains none, has this number of clients.
        last: the data of the trainer's last run, if it has one.
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
        if evaluated := _alone(verb, data):
            data = _evaluated(EvaluatedLoader(data, evaluated), clients)
        return ([rest[0], data, *rest[2:]], named) if len(rest) > 1 else (rest, named | {"datamodule": data})
    if len(rest) > 1 or named.get("datamodule") is not None:
        raise ValueError(f"{verb} takes a data module or loaders; got both: leave one of them out")
    if part not in loaders:
        raise ValueError(f"{verb} needs a training set; got a validation set alone: give train_dataloaders, too")
    if not loaders[part]:
        raise ValueError(f"{verb} got no loader in {given[part]!r}: give one, as in trainer.{verb}(model, loader)")
    if part != "train":
        return rest, named | {"datamodule": _evaluated(Loaders(**{"train": loaders[part][:1]} | loaders), clients)}
    return rest, named | {"datamodule": Loaders(**loaders)}


@dataclass(frozen=True)
class _Anyhow(Partitioner):
    """Gives every client a sample. If there are fewer samples than clients, some clients have the same one."""

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        count = len(samples)
        return Partition.from_clients(np.array_split(np.arange(max(count, num_clients)) % count, num_clients))


def _evaluated(loaders: StandIn, clients: int) -> LightningData:
    """The data of a run that evaluates them and trains no client."""
    return LightningData(loaders, num_clients=clients, partitioner=_Anyhow())


def _data(verb: str, rest: Sequence[Any], named: Mapping[str, Any], last: Any) -> Any:
    """The data of a verb without loaders. None means the last run's, as they are."""
    data, model = rest[1] if len(rest) > 1 else named.get("datamodule"), rest[0] if rest else named.get("model")
    if data is not None:
        return data
    loader = "predict_dataloader" if verb == "predict" else f"{PARTS.get(verb, 'train')}_dataloader"
    if _has(model, "LightningModule", loader):
        return OwnLoaders(model)
    if verb == "predict":
        return last if named.get("inputs") is None and _predicts(last) else None
    if verb not in PARTS or last is None:
        raise ValueError(f"{verb} needs data: give a data set, a loader or a data module, as in trainer.{verb}(model, loader)")
    return None


def _alone(verb: str, data: Any) -> str:
    """The loader that a verb needs alone: that of predictions, or of a data module without a training set; empty for all loaders."""
    if verb == "predict" and _predicts(data):
        return "predict"
    if verb not in PARTS or isinstance(data, FederatedDataModule) or lightning_base(data, "LightningDataModule") is None:
        return ""
    owner, base = (data.loaders_of, "LightningModule") if isinstance(data, OwnLoaders) else (data, "LightningDataModule")
    return PARTS[verb] if _has(owner, base, f"{PARTS[verb]}_dataloader") and not _has(owner, base, "train_dataloader") else ""


def _predicts(data: Any) -> bool:
    """Whether it is a data module of Lightning's with a ``predict_dataloader``. flcog's data modules have no loaders."""
    return not isinstance(data, FederatedDataModule) and _has(data, "LightningDataModule", "predict_dataloader")


def _has(owner: Any, base: str, loader: str) -> bool:
    return lightning_base(owner, base) is not None and overrides(owner, base, loader)


def _loaders(data: Any, verb: str, part: str) -> list[DataLoader]:
    """The loaders, or one of a data set with the default batch size of flcog's data modules."""
    if isinstance(data, Dataset):
        return [DataLoader(data, batch_size=64, shuffle=part == "train")]
    return the_loaders(data, f"{verb} got", "predict" if verb == "predict" else part)
