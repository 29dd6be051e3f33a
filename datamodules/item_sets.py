"""ItemSets: the base class of TorchDataset, LightningData and HuggingFace, whose items are read one by one."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, Subset

from flcog.core.checks import at_least
from flcog.core.trees import Tree, map_leaves
from flcog.data import NewInputs, Samples, Splits
from flcog.data.samples import Returned
from flcog.datamodules.item_reader import ItemReader, Streamed, Task
from flcog.datamodules.items import (
    ItemSet,
    Look,
    Make,
    Target,
    form_of,
    has_images_of_bytes,
    inputs_of,
    look_at,
    needs_whole_batches,
    rows_of,
    targets_of,
    whole_batch_of,
)
from flcog.datamodules.row_file import IN_MEMORY_BYTES, RowFile
from flcog.datamodules.targets import Targets, TaskOrAuto, WithTargets, read_targets

PROBED = 8
"""The number of items, spread over a set, that are read to learn the form of all."""

COMPARED = 100
"""The most items that are read to compare their targets with the data set's ``targets``."""


class Form(NamedTuple):
    """The form of a set's batches."""

    make: Make = inputs_of
    labelled: bool = True
    whole: bool = False  # the steps of a LightningModule receive the batch as the data set makes it


class ItemSets(WithTargets):
    """Data sets that are read item by item."""

    def __init__(
        self,
        task: TaskOrAuto,
        num_classes: int | None,
        collate_fn: Callable[[list[Any]], Any] | None,
        num_workers: int,
        cache_dir: str | None,
        target: Target = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        at_least(self, 0, num_workers=num_workers)
        self._task, self._num_classes, self.collate_fn, self.num_workers = task, num_classes, collate_fn, num_workers
        self.cache_dir, self._target = cache_dir, target

    @abstractmethod
    def _parts(self) -> Mapping[str, ItemSet]:
        """Return the parts that exist, of "train", "test" and "val"."""

    def preprocess(self) -> Callable[[Tree], Tree]:
        return as_torch_has_it

    def new_inputs(self, rows: Any) -> NewInputs:
        """Pictures, as a data set with a ``loader`` and a ``transform`` reads its own, such as torchvision's ``ImageFolder``."""
        items = next(self._sets[part].items for part in ("test", "val", "train") if part in self._sets)
        while isinstance(items, Subset):
            items = items.dataset
        if not isinstance(rows, list) or not hasattr(items, "loader"):
            return super().new_inputs(rows)
        return NewInputs(self._read_new(_Pictures(rows, items.loader, items.transform)), rows)

    def _read_new(self, items: Any, stored: Tree | None = None) -> Tree:
        """The inputs of items without targets."""
        part = ItemSet(items, np.zeros(len(items)), False, stored=stored, collate_fn=self.collate_fn)
        return stored if stored is not None else self._streamed(ItemReader({"new": part}, self.num_workers), "new", part, "train")

    def load(self) -> Splits:
        tensors = self._learnt.tensors
        samples = {
            part: Samples(
                self._inputs(part),
                tensors.get(part, ()),
                items.users,
                self._forms[part].whole,
                self._returned(part),
                self._for_steps(part),
            )
            for part, items in self._sets.items()
        }
        if self.cache_dir is not None:
            self._reader.rest()
        return Splits(**samples)

    @cached_property
    def _sets(self) -> Mapping[str, ItemSet]:
        sets = self._parts()
        for part, items in sets.items():
            if len(items) == 0:
                raise ValueError(f"the {part} set is empty: check its path, split and any subset you asked for")
        return sets

    @cached_property
    def _reader(self) -> ItemReader:
        return ItemReader(self._sets, self.num_workers)

    @cached_property
    def _looks(self) -> dict[str, Look]:
        """What some items of each set look like, except of sets in memory."""
        read = {part: items for part, items in self._sets.items() if items.stored is None and not items.whole}
        return {part: self._reader.make(Task(part, look_at, spread(len(items), PROBED))) for part, items in read.items()}

    @cached_property
    def _forms(self) -> dict[str, Form]:
        return {part: self._form(part, items) for part, items in self._sets.items()}

    def _form(self, part: str, items: ItemSet) -> Form:
        """Return the form of a set's batches: pairs of inputs and targets if its items are such pairs, or whole batches."""
        if self._target is not None or self._task == "unlabelled":
            return Form(whole_batch_of, self._target is not None, whole=True)
        if items.whole:
            return Form(whole_batch_of, labelled=False, whole=True)
        if self._task != "auto" or items.stored is not None or (items.targets is not None and not items.checked):
            return Form()
        look = self._looks[part]
        labelled = look.labelled or items.targets is not None
        if look.pairs and labelled:
            return Form()
        return Form(inputs_of if look.lone and labelled else whole_batch_of, labelled, whole=True)

    # Targets ----------------------------------------------------------------------------------------------------------------------

    @cached_property
    def _learnt(self) -> Targets:
        if not self._forms["train"].labelled:
            return Targets("unlabelled", 0, {})
        name = type(self).__name__
        targets = {part: (array, f"{name}: the targets of the {part} set") for part, array in self._targets.items()}
        assert self._task != "unlabelled"
        return read_targets(targets, self._task, self._num_classes)

    @cached_property
    def _targets(self) -> dict[str, np.ndarray]:
        return {part: self._read_targets(part) for part in self._sets if self._forms[part].labelled}

    def _read_targets(self, part: str) -> np.ndarray:
        """Return all targets of a set: known, from its cache file, or read with the items."""
        known, count = self._known_targets[part], len(self._sets[part])
        if known is not None:
            return known
        if self.cache_dir is not None and self._has_targets(part):
            rows = self._row_file(part)
            assert rows.dtype.names is not None
            return rows.field(rows.dtype.names[-1])[:]
        found = self._reader.each(part, targets_of, np.arange(count))
        bar = track(found, f"reading the targets of the {part} set", -(-count // 32), console=Console(stderr=True))
        return np.concatenate(list(bar))

    @cached_property
    def _known_targets(self) -> dict[str, np.ndarray | None]:
        return {part: self._agreed(part, items) for part, items in self._sets.items()}

    def _agreed(self, part: str, items: ItemSet) -> np.ndarray | None:
        """Return the targets that a data set shows, or None if one item of each class shows that its items have other targets."""
        if items.targets is None or not items.checked:
            return items.targets
        some = spread(len(items), COMPARED)
        if items.targets.ndim == 1:
            firsts = np.unique(items.targets, return_index=True)[1]
            some = np.unique([*firsts[spread(len(firsts), COMPARED)], len(items) - 1])
        own = np.concatenate(list(self._reader.each(part, targets_of, some)))
        if own.dtype == object:  # items that are inputs alone
            return items.targets
        return items.targets if np.array_equal(own.reshape(-1), items.targets[some].reshape(-1)) else None

    def _returned(self, part: str) -> Returned | None:
        """Return the pairs of a set as its ``DataLoader`` returns them, if the samples hold them in another form."""
        items, converted = self._sets[part], self._learnt.tensors.get(part)
        if converted is None or self._forms[part].whole:
            return None
        look = self._looks.get(part)
        changes = type(self).preprocess is not ItemSets.preprocess or self.augment() is not None
        bytes = not changes and (has_images_of_bytes(items.stored) if look is None else look.bytes)
        # The user's own targets take the place of the items'.
        like = None if look is None or (items.targets is not None and not items.checked) else look.targets
        targets = self._targets[part]
        if like is not None and like.dtype.kind in "biuf" and np.prod(like.shape[1:]) == np.prod(targets.shape[1:]):
            targets = targets.reshape(len(targets), *like.shape[1:]).astype(like.dtype)
        kinds = [array.dtype.kind.replace("u", "i") for array in (targets, converted.numpy())]
        same = targets.dtype.kind not in "biuf" or (targets.shape == converted.shape and kinds[0] == kinds[1])
        if same and not bytes:
            return None
        return Returned(converted if same else torch.from_numpy(targets), bytes)

    def _for_steps(self, part: str) -> Streamed | None:
        """The batches of a ``collate_fn``, which may change targets, too (mixup). None if the inputs are all that it makes."""
        items = self._sets[part]
        if items.collate_fn is None or self._forms[part].whole:
            return None
        return Streamed(self._reader, part, len(items), True, whole_batch_of)

    # Inputs -----------------------------------------------------------------------------------------------------------------------

    def _inputs(self, part: str) -> Tree:
        items = self._sets[part]
        if items.stored is not None:
            return items.stored
        if self.cache_dir is None:
            return self._streamed(self._reader, part, items, part)
        rows = self._row_file(part)
        form = self._reader.make(Task(part, form_of, np.zeros(1, np.int64)))
        names = (rows.dtype.names or ())[: form.num_leaves]
        if rows.nbytes <= IN_MEMORY_BYTES:
            read = rows[:]
            return pytree.tree_unflatten([torch.from_numpy(np.array(read[name])) for name in names], form)
        fields: list[Any] = [rows.field(name) for name in names]
        return pytree.tree_unflatten(fields, form)

    def _streamed(self, reader: ItemReader, part: str, items: ItemSet, like: str) -> Streamed:
        """Inputs that are read while the model trains, in the form of another part."""
        # Items that cannot be stacked are refused now, instead of in the middle of a round.
        some, make = spread(len(items), 1 if items.whole else 4), self._forms[like].make
        alone = reader.make(Task(part, partial(needs_whole_batches, make=make), some))
        return Streamed(reader, part, len(items), alone, make)

    def _has_targets(self, part: str) -> bool:
        """Whether a set's cache file contains its targets."""
        if self._known_targets[part] is not None:
            return False
        return self._reader.make(Task(part, targets_of, np.zeros(1, np.int64))).dtype.kind in "biuf"

    def _row_file(self, part: str) -> RowFile:
        """Return a set's cache file, which is named after the part, with all rows."""
        make = partial(rows_of, with_targets=self._has_targets(part))
        dtype = self._reader.make(Task(part, make, np.zeros(1, np.int64))).dtype

        def rows(numbers: np.ndarray) -> Iterator[np.ndarray]:
            for some in self._reader.each(part, partial(make, dtype=dtype), numbers):
                yield from some

        file = RowFile(Path(str(self.cache_dir)) / f"{part}.rows", (len(self._sets[part]),), dtype, rows)
        file.fill(f"reading the {part} set")
        return file


@dataclass(frozen=True)
class _Pictures(Dataset):
    """Files as pairs of input and a target, which nobody reads."""

    files: list[str]
    loader: Callable[[str], Any]
    transform: Callable[[Any], Any] | None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        picture = self.loader(self.files[int(index)])
        return (picture if self.transform is None else self.transform(picture)), 0


def spread(count: int, most: int) -> np.ndarray:
    """Return at most ``most`` of ``count`` indices, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


def as_torch_has_it(inputs: Tree) -> Tree:
    """Return inputs as the data set's transforms made them; scale images of bytes to [0, 1]."""
    return map_leaves(_scaled, inputs)


def _scaled(leaf: Tensor) -> Tensor:
    if leaf.ndim != 4:
        return leaf
    # Channels-last memory, as for all other images here: convolutions read it faster.
    rows = leaf.permute(0, 2, 3, 1)
    dtype = torch.get_default_dtype() if leaf.dtype == torch.uint8 else leaf.dtype
    copied = torch.empty(rows.shape, dtype=dtype, device=leaf.device).copy_(rows)
    return (copied.div_(255) if leaf.dtype == torch.uint8 else copied).permute(0, 3, 1, 2)
