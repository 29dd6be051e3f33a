"""LightningData: makes a federation of the data sets of a plain LightningDataModule."""

from collections.abc import Mapping
from typing import Any

import lightning as L
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate

from flcog.core.lightning_packages import overrides
from flcog.datamodules.item_set import ItemSet
from flcog.datamodules.item_sets import ItemSets
from flcog.datamodules.stand_ins import StandIn, the_loader
from flcog.datamodules.targets import TaskOrAuto
from flcog.datamodules.torch_dataset import PARTS, by_part, parts_of, require_map_style
from flcog.datamodules.workers import Target

WORKERS = 2
"""Number of worker processes if the loader has none, because the training process must train clients."""


class LightningData(ItemSets):
    """Any plain ``LightningDataModule``: clients share the data set of its ``train_dataloader``.

    Batch size, ``drop_last``, ``collate_fn`` and number of workers are the loader's (two worker processes if it has none);
    ``val_dataloader`` and ``test_dataloader`` provide the sets for evaluation. ``trainer.fit(model, datamodule)`` wraps the data
    module in this class by itself, with ten random clients. Items are read as in :class:`TorchDataset`.

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

    def _parts(self) -> Mapping[str, ItemSet]:
        self.module.setup("fit")
        loaders = {"train": self._loader("train"), "val": self._loader("val")}
        self.module.setup("test")
        found = {part: loader for part, loader in (loaders | {"test": self._loader("test")}).items() if loader is not None}
        if "train" not in found:
            raise ValueError(f"{type(self.module).__name__} has no train_dataloader: write one, or give its training set alone")
        train = found["train"]
        self.batch_size = train.batch_size or self.batch_size
        self.eval_batch_size = max(loader.batch_size or 1 for loader in found.values())
        self.drop_last, self.num_workers = train.drop_last, train.num_workers or WORKERS
        self.collate_fn = None if train.collate_fn is default_collate else train.collate_fn
        self.notes = (self._note(train, "test" in found),)
        sets = {part: found[part].dataset for part in PARTS if part in found}
        return parts_of(sets, self._given_targets, self._users, self.collate_fn is None)

    def _loader(self, part: str) -> DataLoader | None:
        hook = f"{part}_dataloader"
        if not overrides(self.module, "LightningDataModule", hook):
            return None
        loader = the_loader(getattr(self.module, hook)(), f"{type(self.module).__name__}.{hook} returns", part)
        if loader is not None:
            require_map_style(loader.dataset, part)
        return loader

    def _note(self, train: DataLoader, tested: bool) -> str:
        """How the sets become a federation."""
        sampler = train.sampler
        how = (
            f"by {type(self.partitioner).__name__}"
            if self.partitioner is not None
            else f"over {self.num_clients} clients at random"
        )
        unused = "" if isinstance(sampler, RandomSampler | SequentialSampler) else f"; its {type(sampler).__name__} is not used"
        what = self.module.stands_for if isinstance(self.module, StandIn) else type(self.module).__name__
        tests = "" if tested else "; no test set"
        return (
            f"a {what} is divided {how}, in batches of {self.batch_size}{tests}{unused}: flcog.datamodules.LightningData takes "
            "num_clients, partitioner, users"
        )
