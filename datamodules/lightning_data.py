"""LightningData: makes a federation of the data sets of a plain LightningDataModule."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import lightning as L
from torch.utils.data import DataLoader

from flcog.core.lightning_packages import overrides
from flcog.data import Splits
from flcog.datamodules.item_sets import ItemSets
from flcog.datamodules.items import ItemSet, Target
from flcog.datamodules.read_loader import ReadLoader, WholeBatches, read_loaders, the_loaders
from flcog.datamodules.targets import TaskOrAuto
from flcog.datamodules.torch_dataset import PARTS, by_part, item_set

WORKERS = 2
"""Number of worker processes if the loader has none, because the training process must train clients."""


class StandIn(L.LightningDataModule):
    """Loaders in the place of a data module: functions that return the loaders of ``train``, ``val``, ``test`` and ``predict``.

    ``hooked`` is the data module whose hooks change batches, and ``loaders_of`` the LightningModule that defines the loaders, if one does.
    """

    def __init__(
        self,
        name: str,
        loaders: Mapping[str, Callable[[], Any]],
        hooked: L.LightningDataModule | None = None,
        loaders_of: Any = None,
        prepare: Callable[[], None] = lambda: None,
        set_up: Callable[[str], None] = lambda stage: None,
    ) -> None:
        super().__init__()
        self.stands_for, self.hooked, self.loaders_of = name, self if hooked is None else hooked, loaders_of
        for part, make in loaders.items():
            setattr(self, f"{part}_dataloader", make)
        self.prepare_data, self.setup = prepare, set_up  # type: ignore[assignment,method-assign]


class LightningData(ItemSets):
    """Any plain ``LightningDataModule``: clients share the data set of its ``train_dataloader``.

    Batch size, ``drop_last`` and number of workers are the loader's (two worker processes if it has none); ``val_dataloader`` and
    ``test_dataloader`` provide the sets for evaluation, and the largest of their batch sizes. Either may return several loaders, whose
    figures have the columns ``val/<name>/dataloader_idx_0`` and so on. Each set has its own loader's ``collate_fn``. Clients read their
    samples in the order of the training loader's sampler or batch sampler: a loader that does not shuffle reads them in the data set's
    order. A stream (an ``IterableDataset``) is read once. So are the joined batches of several training loaders, and clients share
    these batches.
    ``trainer.fit(model, datamodule)`` wraps the data module in this class by itself, with ten random clients. Items are read as in
    :class:`TorchDataset`.

    As YAML:

        class_path: LightningData
        init_args:
          module: {class_path: my_module.MyDataModule, init_args: {data_dir: data}}
          num_clients: 20

    Args:
        module: the data module.
        targets: targets of the training set: an array, or the name of an attribute; for several sets a dict by part. By default
            the data set's ``targets`` or ``labels``, or the targets of its items.
        users: the owner of each training sample: an array, the name of an attribute, or a function of the sample's index.
        task: the kind of targets; ``auto`` infers it from them, ``unlabelled`` ignores them.
        num_classes: number of classes or labels, if some do not occur; for regression, bins of the target.
        target: the place of an item's target: a key (``"label"``), an index (2), or a function of the item.
    """

    batch_size: int
    _stage: str | None = None
    is_by_default = False
    """Whether the trainer has put it around the user's data module or loaders."""

    def __init__(
        self,
        module: L.LightningDataModule,
        targets: Any = None,
        users: Any = None,
        task: TaskOrAuto = "auto",
        num_classes: int | None = None,
        target: Target = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(task, num_classes, None, WORKERS, None, users is not None, target, **kwargs)
        self.module, self._given_targets, self._users = module, by_part(targets), users

    @property
    def hooked(self) -> L.LightningDataModule:
        return self.module.hooked if isinstance(self.module, StandIn) else self.module

    @property
    def loaders_of(self) -> L.LightningModule | None:
        return self.module.loaders_of if isinstance(self.module, StandIn) else None

    def prepare_data(self) -> None:
        self.module.prepare_data()

    def setup(self, stage: str | None = None) -> None:
        """Read the sets once; the user's data module is set up for each evaluation."""
        if self._federation is not None and stage in ("validate", "test", "predict"):
            self.module.setup(stage)
        self._stage = stage
        super().setup(stage)

    def load(self) -> Splits:
        sets = {part: samples for part, samples in vars(super().load()).items() if samples is not None}
        return Splits(**{part: replace(samples, loaders=self._counts[part]) for part, samples in sets.items()})

    def _loaders(self) -> dict[str, list[DataLoader]]:
        """The loaders of all sets, also for an evaluation of one of them."""
        validates = self._stage == "validate"
        self.module.setup("fit")
        found = {"train": self._loaders_of("train"), "val": [] if validates else self._loaders_of("val")}
        self.module.setup("test")
        found["test"] = self._loaders_of("test")
        if self._stage in ("validate", "predict"):
            self.module.setup(self._stage)
        return found | ({"val": self._loaders_of("val")} if validates else {})

    def _parts(self) -> Mapping[str, ItemSet]:
        found = {part: loaders for part, loaders in self._loaders().items() if loaders}
        if "train" not in found:
            raise ValueError(f"{type(self.module).__name__} has no train_dataloader: write one, or give its training set alone")
        read = {part: read_loaders(found[part], part) for part in PARTS if part in found}
        train = read["train"]
        self.batch_size = train.batch_size
        self.eval_batch_size = max((read[part].batch_size for part in ("val", "test") if part in read), default=self.batch_size)
        self.drop_last, self.num_workers = train.drop_last, found["train"][0].num_workers or WORKERS
        self.collate_fn, self.order = train.collate_fn, train.order
        self.notes = (self._note(read),)
        self._counts = {part: loader.counts for part, loader in read.items()}
        return {part: self._part(part, loader) for part, loader in read.items()}

    def _part(self, part: str, loader: ReadLoader) -> ItemSet:
        if isinstance(loader.dataset, WholeBatches):
            return ItemSet(loader.dataset, whole=True, collate_fn=loader.collate_fn, place=self._target)
        targets, users = loader.of_its_rows(self._given_targets.get(part)), loader.of_its_rows(self._users)
        return item_set(part, loader.dataset, targets, users if part == "train" else None, loader.collate_fn, self._target)

    def _loaders_of(self, part: str) -> list[DataLoader]:
        hook = f"{part}_dataloader"
        make = getattr(self.module, hook)
        if make is None or not (hook in vars(self.module) or overrides(self.module, "LightningDataModule", hook)):
            return []
        return the_loaders(make(), f"{type(self.module).__name__}.{hook} returns", part)

    def _note(self, read: Mapping[str, ReadLoader]) -> str:
        """How the sets become a federation."""
        by = self.partitioner
        how = f"over {self.num_clients} clients at random" if by is None else f"by {type(by).__name__}"
        whose = {"train": "its", "val": "the validation loader's", "test": "the test loader's"}
        unused = "".join(f"; {whose[part]} {loader.unused} is not used" for part, loader in read.items() if loader.unused)
        what = self.module.stands_for if isinstance(self.module, StandIn) else type(self.module).__name__
        batches = "in its own batches" if isinstance(read["train"].dataset, WholeBatches) else f"in batches of {self.batch_size}"
        tests = "" if "test" in read else "; no test set"
        remedy = ": flcog.datamodules.LightningData takes num_clients, partitioner, users" if self.is_by_default else ""
        return f"a {what} is divided {how}, {batches}{tests}{unused}{remedy}"
