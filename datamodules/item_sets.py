"""ItemSets: the base class of TorchDataset and HuggingFace, whose items are read one by one."""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch.utils import _pytree as pytree

from flcog.core.checks import at_least
from flcog.core.trees import Tree, not_rows
from flcog.data import Partitioner, Samples, Splits
from flcog.data.samples import Returned
from flcog.datamodules.fingerprint import fingerprint
from flcog.datamodules.item_set import ItemSet, in_evaluations
from flcog.datamodules.items import form_of, inputs_of, look_at, rows_of, targets_of, whole_batch_of
from flcog.datamodules.partitioners import Natural
from flcog.datamodules.returned_pairs import Example, as_torch_has_it, example_of, has_images_of_bytes, returned_pairs
from flcog.datamodules.row_file import IN_MEMORY_BYTES, CheckedRows, RowFile
from flcog.datamodules.some_items import PROBED, change_at_random, of_each_class, spread
from flcog.datamodules.streamed import Streamed
from flcog.datamodules.targets import Targets, TaskOrAuto, WithTargets, read_targets
from flcog.datamodules.workers import Items, Make, Target, Workers, result_of

REMEDY = "point cache_dir at a larger disk, or leave it out, and items are read while the model trains"


class Form(NamedTuple):
    """The form of a set's batches.

    Args:
        make: makes a batch.
        labelled: whether the items have targets.
        whole: whether the steps of a LightningModule receive the batch as the data set makes it.
    """

    make: Make = inputs_of
    labelled: bool = True
    whole: bool = False


class ItemSets(WithTargets):
    """Data sets that are read item by item.

    Args:
        task: the kind of targets; ``auto`` infers it from them.
        num_classes: the number of classes or labels, if some do not occur; for regression, the number of bins of the target.
        collate_fn: a function from a list of items to a batch, as for ``DataLoader``.
        num_workers: the number of processes that read.
        cache_dir: a folder for the items after they are read once; None to read them while the model trains.
        natural: whether users are known; they are the clients unless a partitioner is given.
    """

    def __init__(
        self,
        task: TaskOrAuto,
        num_classes: int | None,
        collate_fn: Callable[[list[Any]], Any] | None,
        num_workers: int,
        cache_dir: str | None,
        natural: bool,
        target: Target = None,
        partitioner: Partitioner | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(partitioner=partitioner or (Natural() if natural else None), **kwargs)
        at_least(self, 0, num_workers=num_workers)
        if cache_dir is not None and collate_fn is not None:
            raise ValueError(
                "a file keeps items of one shape, before any collate_fn: leave out cache_dir, or pad the items in the data set's "
                "own transform"
            )
        self._task, self._num_classes, self.collate_fn, self.num_workers = task, num_classes, collate_fn, num_workers
        self.cache_dir, self._target = cache_dir, target
        self._files: dict[str, tuple[RowFile, bool]] = {}

    _without_changes = "give a val and a test set"
    """How the user evaluates without the training set's random changes."""

    @abstractmethod
    def _parts(self) -> Mapping[str, ItemSet]:
        """Return the parts that exist, of "train", "test" and "val"."""

    def preprocess(self) -> Callable[[Tree], Tree]:
        return as_torch_has_it

    def prepare_data(self) -> None:
        if self.cache_dir is not None:
            for part in self._sets:
                self._fill(part)

    def load(self) -> Splits:
        tensors = self._learnt.tensors
        splits = Splits(
            **{
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
        )
        if self.cache_dir is not None:
            self._workers.rest()
        return splits

    @cached_property
    def _sets(self) -> Mapping[str, ItemSet]:
        sets = self._parts()
        for part, items in sets.items():
            if len(items.items) == 0:
                raise ValueError(f"the {part} set is empty: check its path, split and any subset you asked for")
        if self.cache_dir is not None:  # now, because reading an item may change a data set's attributes
            self._fingerprints = {part: fingerprint(items.items, Path(self.cache_dir)) for part, items in sets.items()}
        return sets

    @cached_property
    def _workers(self) -> Workers:
        sets = self._sets.items()
        parts = {name: Items(part.items, part.collate_fn, part.targets is not None, self._target) for name, part in sets}
        evaluated = {name: part.evaluated for name, part in sets if part.evaluated is not None}
        parts |= {in_evaluations(name): replace(parts[name], items=items) for name, items in evaluated.items()}
        return Workers(parts, self.num_workers)

    @cached_property
    def _learnt(self) -> Targets:
        if not self._forms["train"].labelled:
            return Targets("unlabelled", 0, {})
        name = type(self).__name__
        targets = {part: (array, f"{name}: the targets of the {part} set") for part, array in self._all_targets.items()}
        assert self._task != "unlabelled"
        return read_targets(targets, self._task, self._num_classes)

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
        look = result_of(self._workers.submit(part, look_at, spread(len(items.items), PROBED)), part)
        labelled = look.labelled or items.targets is not None
        if look.pairs and labelled:
            return Form()
        return Form(inputs_of if look.lone and labelled else whole_batch_of, labelled, whole=True)

    # Targets ----------------------------------------------------------------------------------------------------------------------

    @cached_property
    def _all_targets(self) -> dict[str, np.ndarray]:
        return {part: self._targets(part) for part in self._sets if self._forms[part].labelled}

    def _returned(self, part: str) -> Returned | None:
        """Return the pairs of a set as its ``DataLoader`` returns them, if the samples hold them in another form."""
        items, converted = self._sets[part], self._learnt.tensors.get(part)
        if converted is None or self._forms[part].whole:
            return None
        if items.stored is not None:
            example = Example(None, has_images_of_bytes(items.stored))
        else:
            some = np.arange(min(8, len(items.items)) if items.collate_fn is not None else 1)
            example = result_of(self._workers.submit(part, example_of, some), part)
        if items.targets is not None and not items.checked:
            example = Example(None, example.bytes)  # the user's own targets take the place of the items'
        if type(self).preprocess is not ItemSets.preprocess or self.augment() is not None:
            example = Example(example.targets, bytes=False)  # a subclass defines what becomes of the inputs
        return returned_pairs(self._all_targets[part], converted, example)

    def _targets(self, part: str) -> np.ndarray:
        """Return all targets of a set: known, from its cache file, or read with the items."""
        known, count = self._known_targets[part], len(self._sets[part].items)
        if known is not None:
            return known
        if self.cache_dir is not None and self._file(part)[1]:
            rows = self._fill(part)
            return rows.field(rows.dtype.names[-1])[:]
        found = self._workers.each(part, targets_of, np.arange(count))
        bar = track(found, f"reading the targets of the {part} set", -(-count // 32), console=Console(stderr=True))
        return np.concatenate(list(bar))

    @cached_property
    def _known_targets(self) -> dict[str, np.ndarray | None]:
        return {part: self._agreed(part, items) for part, items in self._sets.items()}

    def _agreed(self, part: str, items: ItemSet) -> np.ndarray | None:
        """Return the targets that a data set shows, or None if its items have other targets.

        One item of each class is read to compare. A ``target_transform`` could change any item, so with one all items are read.
        """
        if items.targets is None or not items.checked:
            return items.targets
        if items.transformed:
            return None
        some = of_each_class(items.targets)
        own = np.concatenate(list(self._workers.each(part, targets_of, some)))
        if own.dtype == object:  # items that are inputs alone
            return items.targets
        return items.targets if np.array_equal(own.reshape(-1), items.targets[some].reshape(-1)) else None

    def _for_steps(self, part: str) -> Streamed | None:
        """The batches of a ``collate_fn``, which may change targets, too (mixup). None if the inputs are all that it makes."""
        items = self._sets[part]
        if items.collate_fn is None or self._forms[part].whole:
            return None
        return Streamed(self._workers, part, len(items.items), True, whole_batch_of, self._evaluated(part))

    def _evaluated(self, part: str) -> str:
        """The workers' name of a set as evaluations read it."""
        return part if self._sets[part].evaluated is None else in_evaluations(part)

    # Inputs -----------------------------------------------------------------------------------------------------------------------

    def _inputs(self, part: str) -> Tree:
        items = self._sets[part]
        if items.stored is not None:
            return items.stored
        make = self._forms[part].make
        if self.cache_dir is None:
            # Refuse items that cannot be stacked now, instead of in the middle of a round.
            some = spread(len(items.items), 1 if items.whole else 4)
            batch = result_of(self._workers.submit(part, make, some), part)
            alone = items.collate_fn is not None or bool(make is whole_batch_of and not_rows(batch, len(some)))
            evaluated = self._evaluated(part)
            if part == "train" and evaluated == part and (self.client_val or self.client_test):
                self._note_random_changes(len(items.items))
            return Streamed(self._workers, part, len(items.items), alone, make, evaluated)
        rows = self._fill(part)
        form = result_of(self._workers.submit(part, form_of, np.zeros(1, np.int64)), part)
        names = (rows.dtype.names or ())[: form.num_leaves]
        if rows.nbytes <= IN_MEMORY_BYTES:
            read = rows[:]
            return pytree.tree_unflatten([torch.from_numpy(np.array(read[name])) for name in names], form)
        fields: list[Any] = [rows.field(name) for name in names]
        return pytree.tree_unflatten(fields, form)

    def _note_random_changes(self, count: int) -> None:
        """Say that the clients' held-out samples have the random changes of training."""
        if change_at_random(self._workers, "train", count):
            held_out = " and ".join(name for name in ("client_val", "client_test") if getattr(self, name))
            self.notes += (
                f"the training set changes its items at random, also those of {held_out}: {self._without_changes}, to measure without",
            )

    def _fill(self, part: str) -> CheckedRows:
        """Fill the set's cache file and return its rows."""
        file, with_targets = self._file(part)
        make = partial(rows_of, dtype=file.dtype, with_targets=with_targets)
        file.fill(lambda rows: (row for some in self._workers.each(part, make, rows) for row in some), f"reading the {part} set")
        return file.load()

    def _file(self, part: str) -> tuple[RowFile, bool]:
        """Return the set's cache file, whose name depends on the content of the set, and whether targets are in it too."""
        if self._forms[part].make is whole_batch_of:
            raise ValueError(
                f"cache_dir keeps inputs of pairs, and an item of the {part} set is no such pair: leave out cache_dir"
            )
        if part not in self._files:
            count = len(self._sets[part].items)
            some = spread(count, PROBED)
            alone = result_of(self._workers.submit(part, targets_of, some), part)
            with_targets = self._known_targets[part] is None and alone.dtype.kind in "biuf"
            rows = result_of(self._workers.submit(part, partial(rows_of, with_targets=with_targets), some), part)
            probed = f"{count} {rows.dtype.descr}".encode() + rows.tobytes()
            content = self._fingerprints[part] or self._digest(
                part, partial(rows_of, dtype=rows.dtype, with_targets=with_targets)
            )
            digest = hashlib.sha256(probed + content.encode()).hexdigest()[:12]
            file = RowFile(Path(str(self.cache_dir)) / f"{part}-{digest}.npy", (count,), rows.dtype, REMEDY)
            self._files[part] = file, with_targets
        return self._files[part]

    def _digest(self, part: str, make: Callable[..., Any]) -> str:
        """Read all items of a set that hides its content, and return their digest."""
        kind, count, digest = type(self._sets[part].items).__name__, len(self._sets[part].items), hashlib.sha256()
        console = Console(stderr=True)
        console.print(f"{kind} does not show all of its content: its items are read to see whether cache_dir holds these")
        read = self._workers.each(part, make, np.arange(count))
        for rows in track(read, f"comparing the {part} set", -(-count // 32), console=console):
            digest.update(rows.tobytes())
        return digest.hexdigest()
