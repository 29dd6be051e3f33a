"""Loaders: a data module of loaders, for verbs of the trainer that take loaders as ``lightning.Trainer`` does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from torch.utils.data import DataLoader, Dataset

from flcog.core.lightning_packages import lightning_base, overrides
from flcog.datamodules.lightning_data import LightningData

PARTS = {"validate": "val", "test": "test", "predict": "test"}
"""The set that a verb evaluates."""


class Loaders(L.LightningDataModule):
    """Loaders of a training set and of sets to evaluate."""

    stands_for = "DataLoader"

    def __init__(self, train: Any, val: Any = None, test: Any = None) -> None:
        super().__init__()
        self._train, self._val, self._test = train, val, test

    def train_dataloader(self) -> Any:
        return self._train

    def val_dataloader(self) -> Any:
        return self._val

    def test_dataloader(self) -> Any:
        return self._test


class PredictLoader(L.LightningDataModule):
    """The loader of a data module's ``predict_dataloader`` alone."""

    def __init__(self, datamodule: L.LightningDataModule) -> None:
        super().__init__()
        self.datamodule, self.stands_for = datamodule, type(datamodule).__name__

    def prepare_data(self) -> None:
        self.datamodule.prepare_data()

    def setup(self, stage: str) -> None:
        if stage == "fit":  # LightningData calls it again for tests
            self.datamodule.setup("predict")

    def train_dataloader(self) -> Any:
        return self.datamodule.predict_dataloader()

    test_dataloader = train_dataloader


class OwnLoaders(L.LightningDataModule):
    """The loaders that a module defines itself, for verbs without data."""

    def __init__(self, module: L.LightningModule) -> None:
        super().__init__()
        self.module, self.stands_for = module, f"loader of {type(module).__name__}"

    def setup(self, stage: str) -> None:
        self.module.setup(stage)

    def train_dataloader(self) -> Any:
        return self._loader("train_dataloader")

    def val_dataloader(self) -> Any:
        return self._loader("val_dataloader")

    def test_dataloader(self) -> Any:
        return self._loader("test_dataloader")

    def predict_dataloader(self) -> Any:
        return self._loader("predict_dataloader")

    def _loader(self, hook: str) -> Any:
        return getattr(self.module, hook)() if overrides(self.module, "LightningModule", hook) else None


def with_datamodule(
    verb: str, arguments: tuple[Any, ...], options: Mapping[str, Any], clients: int, has_data: bool = False
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a verb with one data module in the place of loaders.

    ``fit(model, train_loader, val_loader)`` trains on the first set and validates on the second; ``test(model, loader)`` and
    ``validate(model, loader)`` evaluate one set.

    Args:
        verb: the name of the trainer's method.
        arguments, options: the user's.
        clients: the least number of clients that a round needs. An evaluation divides a set over no more.
        has_data: whether the trainer has a run, whose data serve evaluations.
    """
    rest, named, part = list(arguments), dict(options), PARTS.get(verb, "train")
    keywords = {"train_dataloaders": "train", "val_dataloaders": "val", "dataloaders": part}
    given = {keywords[name]: named.pop(name, None) for name in keywords if name in named}
    if len(rest) > 2 and not isinstance(rest[2], str | Path | None):
        given["val"] = rest.pop(2)
    if len(rest) > 1 and (given or part != "train") and isinstance(rest[1], DataLoader | Dataset | list):
        given[part] = rest.pop(1)
    loaders = {name: _loader(loader) for name, loader in given.items() if loader is not None}
    if not loaders:
        data = rest[1] if len(rest) > 1 else named.get("datamodule")
        loader = "predict_dataloader" if verb == "predict" else f"{part}_dataloader"
        if data is not None:
            if verb == "predict" and _has(data, "LightningDataModule", loader):
                return rest[:1], named | {"datamodule": LightningData(PredictLoader(data), num_clients=clients)}
            return rest, named
        model: Any = rest[0] if rest else named.get("model")
        if _has(model, "LightningModule", loader):
            own = OwnLoaders(model)
            return rest, named | {
                "datamodule": LightningData(PredictLoader(own), num_clients=clients) if verb == "predict" else own
            }
        if part == "train" or not (has_data or verb == "predict"):
            raise ValueError(
                f"{verb} needs data: give a data set, a loader or a data module, as in trainer.{verb}(model, loader)"
            )
        return rest, named
    module = given.get("train")
    if part == "train" and lightning_base(module, "LightningDataModule") is not None and len(loaders) == 1:
        return rest, named | {"datamodule": module}
    if len(rest) > 1 or named.get("datamodule") is not None:
        raise ValueError(f"{verb} takes a data module or loaders; got both: leave one of them out")
    if part != "train":
        return rest, named | {"datamodule": LightningData(Loaders(**{"train": loaders[part]} | loaders), num_clients=clients)}
    if "train" not in loaders:
        raise ValueError(f"{verb} needs a training set; got a validation set alone: give train_dataloaders, too")
    return rest, named | {"datamodule": Loaders(**loaders)}


def _has(owner: Any, base: str, loader: str) -> bool:
    return lightning_base(owner, base) is not None and overrides(owner, base, loader)


def _loader(data: Any) -> Any:
    """The loader, or one of a data set with the default batch size of flcog's data modules."""
    return DataLoader(data, batch_size=64) if isinstance(data, Dataset) else data
