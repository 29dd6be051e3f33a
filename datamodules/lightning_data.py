"""LightningData: makes a federation of the data sets of a plain LightningDataModule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import lightning as L
from torch.utils.data import DataLoader

from flcog.core.lightning_packages import lightning_base, overrides
from flcog.data import Natural, Splits
from flcog.datamodules.item_sets import ItemSets
from flcog.datamodules.items import ItemSet, Target
from flcog.datamodules.read_loader import ReadLoader, WholeBatches, read_loaders, the_loaders
from flcog.datamodules.targets import TaskOrAuto
from flcog.datamodules.torch_dataset import PARTS, by_part, item_set

WORKERS = 2
"""Number of worker processes if the loader has none, because the training process must train clients."""


@dataclass(frozen=True)
class Loaders:
    """Functions that return the loaders of ``train``, ``val``, ``test`` and ``predict``, as far as there are some, and whose they are."""

    owner: str
    by_part: Mapping[str, Callable[[], Any]]
    hooked: L.LightningDataModule = field(default_factory=L.LightningDataModule)  # its hooks change batches
    module: L.LightningModule | None = None  # that defines the loaders, if one does
    prepare: Callable[[], None] = lambda: None
    set_up: Callable[[str], None] = lambda stage: None

    @classmethod
    def of(cls, data: L.LightningDataModule) -> "Loaders":
        """The loaders of a data module."""
        own = {part: loader for part in (*PARTS, "predict") if (loader := loader_of(data, "LightningDataModule", part))}
        return cls(type(data).__name__, own, data, prepare=data.prepare_data, set_up=data.setup)


def loader_of(owner: Any, base: str, part: str) -> Any:
    """The method that returns the loaders of a part, if the owner defines it in place of Lightning's base class."""
    name = f"{part}_dataloader"
    return getattr(owner, name) if lightning_base(owner, base) is not None and overrides(owner, base, name) else None


class LightningData(ItemSets):
    """Any plain ``LightningDataModule``: clients share the data set of its ``train_dataloader``.

    Batch size, ``drop_last`` and number of workers are the loader's (two worker processes if it has none) and no options here;
    ``val_dataloader`` and ``test_dataloader`` provide the sets for evaluation, and the largest of their batch sizes. Either may return
    several loaders, whose figures have the columns ``val/<name>/dataloader_idx_0`` and so on. Each set has its own loader's
    ``collate_fn``. Clients read their samples in the order of the training loader's sampler or batch sampler: a loader that does not
    shuffle reads them in the data set's order. A stream (an ``IterableDataset``) is read once. So are the joined batches of several
    training loaders, and clients share these batches.
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
        module: L.LightningDataModule | Loaders,
        targets: Any = None,
        users: Any = None,
        task: TaskOrAuto = "auto",
        num_classes: int | None = None,
        target: Target = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            task, num_classes, None, WORKERS, None, target, batch_size=1, eval_batch_size=1, drop_last=False, **kwargs
        )
        self.module, self._given_targets, self._users = module, by_part(targets), users
        self._source = module if isinstance(module, Loaders) else Loaders.of(module)

    @property
    def hooked(self) -> L.LightningDataModule:
        return self._source.hooked

    @property
    def loaders_of(self) -> L.LightningModule | None:
        return self._source.module

    def prepare_data(self) -> None:
        self._source.prepare()

    def setup(self, stage: str | None = None) -> None:
        """Read the sets once; the user's data module is set up for each evaluation."""
        if self._federation is not None and stage in ("validate", "test", "predict"):
            self._source.set_up(stage)
        self._stage = stage
        super().setup(stage)

    def load(self) -> Splits:
        sets = {part: samples for part, samples in vars(super().load()).items() if samples is not None}
        return Splits(**{part: replace(samples, loaders=self._counts[part]) for part, samples in sets.items()})

    def _loaders(self) -> dict[str, list[DataLoader]]:
        """The loaders of all sets, also for an evaluation of one of them."""
        validates = self._stage == "validate"
        self._source.set_up("fit")
        found = {"train": self._loaders_of("train"), "val": [] if validates else self._loaders_of("val")}
        self._source.set_up("test")
        found["test"] = self._loaders_of("test")
        if self._stage in ("validate", "predict"):
            self._source.set_up(self._stage)
        return found | ({"val": self._loaders_of("val")} if validates else {})

    def _parts(self) -> Mapping[str, ItemSet]:
        found = {part: loaders for part, loaders in self._loaders().items() if loaders}
        if "train" not in found:
            raise ValueError(f"{self._source.owner} has no train_dataloader: write one, or give its training set alone")
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
        make = self._source.by_part.get(part)
        return [] if make is None else the_loaders(make(), part)

    def _note(self, read: Mapping[str, ReadLoader]) -> str:
        """How the sets become a federation."""
        by = self.partitioner or (None if self._users is None else Natural())
        how = f"over {self.num_clients} clients at random" if by is None else f"by {type(by).__name__}"
        whose = {"train": "its", "val": "the validation loader's", "test": "the test loader's"}
        unused = "".join(f"; {whose[part]} {loader.unused} is not used" for part, loader in read.items() if loader.unused)
        batches = "in its own batches" if isinstance(read["train"].dataset, WholeBatches) else f"in batches of {self.batch_size}"
        tests = "" if "test" in read else "; no test set"
        remedy = ": flcog.datamodules.LightningData takes num_clients, partitioner, users" if self.is_by_default else ""
        return f"a {self._source.owner} is divided {how}, {batches}{tests}{unused}{remedy}"
