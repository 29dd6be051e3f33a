"""Data modules that stand for loaders, for the trainer's verbs that get no data module."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import lightning as L
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader

from flcog.core.global_streams import seeded
from flcog.core.lightning_packages import overrides
from flcog.datamodules.whole_batches import WholeBatches

MOST_BATCHES = 100_000
"""The most batches that are read into memory."""


def the_loaders(given: Any, where: str, part: str) -> list[DataLoader]:
    """A part's loaders, also from a list or a dict. The batches of several for training are joined, as Lightning does.

    Other objects that yield batches are read once, and so are joined ones. Clients share their batches out among themselves.
    """
    if given is None:
        return []
    loaders = list(given.values()) if isinstance(given, dict) else list(given) if isinstance(given, list | tuple) else [given]
    if part == "train" and len(loaders) > 1:
        loaders = [CombinedLoader(given, "max_size_cycle")]
    if part == "predict" and len(loaders) > 1:
        raise ValueError(
            f"{where} a {type(given).__name__}, and predictions read one torch DataLoader: take one, and call trainer.predict(model, "
            "loader) for each of the others"
        )
    if not all(isinstance(loader, Iterable) for loader in loaders):
        raise ValueError(f"{where} a {type(given).__name__}, and a loader yields batches: return a torch DataLoader")
    return [loader if isinstance(loader, DataLoader) else _of_batches(loader) for loader in loaders]


def _of_batches(loader: Iterable[Any]) -> DataLoader:
    """A loader of the batches of anything that yields them."""
    with seeded(0):
        found = list(islice(loader, MOST_BATCHES + 1))
    if len(found) > MOST_BATCHES:
        raise ValueError(
            f"a {type(loader).__name__} yields more than {MOST_BATCHES:,} batches, which are held in memory: give a DataLoader"
        )
    batches = [batch[0] for batch in found] if isinstance(loader, CombinedLoader) else found
    return DataLoader(WholeBatches(batches), batch_size=None, collate_fn=None)


class StandIn(L.LightningDataModule):
    """Loaders in the place of a data module.

    Args:
        name: the name of the user's object in notes.
        hooked: the data module whose hooks change batches; itself by default.
        loaders_of: the module that defines the loaders, if it is a ``LightningModule``.
    """

    def __init__(
        self, name: str, hooked: L.LightningDataModule | None = None, loaders_of: L.LightningModule | None = None
    ) -> None:
        super().__init__()
        self.stands_for, self.hooked, self.loaders_of = name, self if hooked is None else hooked, loaders_of


class Loaders(StandIn):
    """Loaders of a training set and of sets to evaluate."""

    def __init__(self, train: Any, val: Any = None, test: Any = None) -> None:
        super().__init__("DataLoader")
        self._train, self._val, self._test = train, [] if val is None else val, [] if test is None else test

    def train_dataloader(self) -> Any:
        return self._train

    def val_dataloader(self) -> Any:
        return self._val

    def test_dataloader(self) -> Any:
        return self._test


class EvaluatedLoader(StandIn):
    """One loader of a data module alone, whose set is evaluated.

    Args:
        datamodule: the data module.
        part: ``val``, ``test`` or ``predict``.
    """

    def __init__(self, datamodule: L.LightningDataModule, part: str) -> None:
        inner = datamodule if isinstance(datamodule, StandIn) else StandIn(type(datamodule).__name__, datamodule)
        super().__init__(inner.stands_for, inner.hooked, inner.loaders_of)
        self._datamodule, self._part = datamodule, part

    def prepare_data(self) -> None:
        self._datamodule.prepare_data()

    def setup(self, stage: str) -> None:
        if stage == "fit":  # LightningData calls it again for tests
            self._datamodule.setup({"val": "validate"}.get(self._part, self._part))

    def train_dataloader(self) -> Any:
        return next(iter(self._loaders()), None)

    def val_dataloader(self) -> Any:
        return self._loaders() if self._part == "val" else []

    def test_dataloader(self) -> Any:
        return [] if self._part == "val" else self._loaders()

    def _loaders(self) -> list[DataLoader]:
        owner, hook = type(self.loaders_of or self.hooked).__name__, f"{self._part}_dataloader"
        return the_loaders(getattr(self._datamodule, hook)(), f"{owner}.{hook} returns", self._part)


class OwnLoaders(StandIn):
    """The loaders that a module defines itself, for verbs without data."""

    def __init__(self, module: L.LightningModule) -> None:
        super().__init__(f"loader of {type(module).__name__}", loaders_of=module)
        self._module = module

    def setup(self, stage: str) -> None:
        self._module.setup(stage)

    def train_dataloader(self) -> Any:
        return self._loader("train_dataloader")

    def val_dataloader(self) -> Any:
        return self._loader("val_dataloader")

    def test_dataloader(self) -> Any:
        return self._loader("test_dataloader")

    def predict_dataloader(self) -> Any:
        return self._loader("predict_dataloader")

    def _loader(self, hook: str) -> Any:
        return getattr(self._module, hook)() if overrides(self._module, "LightningModule", hook) else []
