"""TorchDataset: a data module for any map-style torch data set."""

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from flcog.data.samples import checked_users
from flcog.datamodules.item_sets import ItemSets
from flcog.datamodules.items import ItemSet, Target, as_array, can_be_targets
from flcog.datamodules.targets import TaskOrAuto

PARTS = ("train", "test", "val")

CollateFn = Callable[[list[Any]], Any]


class TorchDataset(ItemSets):
    """Any map-style ``torch.utils.data.Dataset``, read by worker processes.

    The items of a ``flcog.ClientModule`` are pairs of input and target. An input is a tensor, or a dict or tuple of tensors. Targets
    come from the data set's ``targets`` or ``labels``. If it has neither, or a ``target_transform`` changes them, they are read once
    from the items. Integers and text are classes, floats are values, rows of 0 and 1 are several labels, rows of other floats several
    values. With ``users`` every user is a client.

    The steps of a ``LightningModule`` receive pairs and items of any other structure, such as dicts, triples and inputs alone, as a
    ``DataLoader`` returns them. Other items than pairs have no targets unless ``target`` names them, for splits by label and label
    statistics.

    The data set's own transforms run in the workers. Their random draws (from torch's, numpy's or Python's streams) depend on
    seed, round, client and sample, so that a run can be repeated and resumed to the bit. In evaluations a sample's random draws
    are always the same. With ``cache_dir`` every item is read once, with its random transforms, into a file of that folder. Name
    another folder, or delete it, if the data set or its transforms change: flcog reads what is there. A plain ``TensorDataset`` is
    replaced by its tensors.

    CIFAR-10 by torchvision's own class, as YAML:

        class_path: TorchDataset
        init_args:
          train:
            class_path: torchvision.datasets.CIFAR10
            init_args: {root: data, train: true, transform: {class_path: torchvision.transforms.ToTensor}}
          test:
            class_path: torchvision.datasets.CIFAR10
            init_args: {root: data, train: false, transform: {class_path: torchvision.transforms.ToTensor}}
          cache_dir: data/decoded

    Args:
        train: the training set, or a list with one set for each client.
        test: the test set.
        val: the validation set.
        targets: targets of the training set: an array, or the name of an attribute; for several sets a dict by part.
        users: the owner of each training sample: an array, the name of an attribute, or a function of the sample's index. They take the
            place of a list's clients.
        task: the kind of targets; ``auto`` infers it from them, ``unlabelled`` ignores them.
        num_classes: the number of classes or labels, if some do not occur. For regression, the number of bins that replace
            classes in methods that use label counts (10 by default).
        collate_fn: a function from a list of items to a batch (inputs, targets), as for ``DataLoader``, e.g. to pad texts.
            Batches may then differ in shape, so clients train one by one; ``executor=vmap`` works if their shapes are equal.
        num_workers: the number of processes that read items; 0 reads them in the training process.
        cache_dir: a folder for the items, pairs of one shape, which are then read once and need no ``collate_fn``; None reads them while
            the model trains.
        target: the place of an item's target: a key (``"label"``), an index (2), or a function of the item. Batches reach the steps of
            a ``LightningModule`` unchanged.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> TorchDataset(TensorDataset(torch.rand(100, 5), torch.arange(100) % 3)).federation.num_classes
        3
    """

    def __init__(
        self,
        train: Dataset | list[Dataset],
        test: Dataset | None = None,
        val: Dataset | None = None,
        targets: Any = None,
        users: Any = None,
        task: TaskOrAuto = "auto",
        num_classes: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 2,
        cache_dir: str | None = None,
        target: Target = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(task, num_classes, collate_fn, num_workers, cache_dir, target, **kwargs)
        if is_one_each(train):
            users = np.repeat(np.arange(len(train)), [len(each) for each in train]) if users is None else users
            train = ConcatDataset(train)
        given = {"train": train, "test": test, "val": val}
        self.sets = {part: dataset for part, dataset in given.items() if dataset is not None}
        for part, dataset in self.sets.items():
            if isinstance(dataset, IterableDataset):
                raise ValueError(
                    f"{part} is a {type(dataset).__name__}, a stream, whose samples have no clients: give a map-style set"
                )
        self._given_targets = by_part(targets)
        self._users = users

    def _parts(self) -> dict[str, ItemSet]:
        return {
            part: item_set(
                part,
                dataset,
                self._given_targets.get(part),
                self._users if part == "train" else None,
                self.collate_fn,
                self._target,
            )
            for part, dataset in self.sets.items()
        }


def is_one_each(data: Any) -> TypeGuard[list[Any]]:
    """Whether this is a list of data sets, one for each client. A list of items is one data set."""
    return isinstance(data, list | tuple) and len(data) > 0 and all(isinstance(each, Dataset) for each in data)


def by_part(targets: Any) -> dict[str, Any]:
    """Return the user's targets by part."""
    if isinstance(targets, str):
        return dict.fromkeys(PARTS, targets)
    return dict(targets) if isinstance(targets, Mapping) else {"train": targets}


def item_set(part: str, dataset: Any, targets: Any, users: Any, collate_fn: CollateFn | None, place: Target) -> ItemSet:
    """A torch data set as a set of items. Targets and users are as for :class:`TorchDataset`.

    Without a ``collate_fn``, which stacks the items, a ``TensorDataset`` is used directly.
    """
    targets, owners = _named(dataset, targets, part), _named(dataset, users, part)
    if callable(owners):
        owners = [owners(index) for index in range(len(dataset))]
    if owners is not None:  # now, because reading the items may take hours
        owners = checked_users(as_array(owners), len(dataset))
    common: dict[str, Any] = {"users": owners, "collate_fn": collate_fn, "place": place}
    if (tensors := _plain_tensors(dataset)) is not None and collate_fn is None:
        if len(tensors) == 2 and (targets is not None or can_be_targets(tensors[1])):
            return ItemSet(dataset, as_array(tensors[1] if targets is None else targets), False, stored=tensors[0], **common)
        if targets is None:
            return ItemSet(dataset, stored=list(tensors), whole=True, **common)
    if targets is not None:
        return ItemSet(dataset, as_array(targets), False, **common)
    found = attribute_of(dataset, ("targets", "labels"))
    shown = None if found is None else as_array(found)
    known = shown if shown is not None and len(shown) == len(dataset) else None
    return ItemSet(dataset, known, **common)


def _named(dataset: Any, values: Any, part: str) -> Any:
    """The values, or the attribute of the data set that they name."""
    if not isinstance(values, str):
        return values
    found = attribute_of(dataset, (values,))
    if found is None:
        raise ValueError(f"the {part} set ({type(dataset).__name__}) has no attribute {values!r}: give the values themselves")
    return found


def attribute_of(dataset: Any, names: tuple[str, ...]) -> Any:
    """Return the first of these attributes that a data set has, also through torch's subsets and concatenations."""
    for name in names:
        if (values := getattr(dataset, name, None)) is not None and not callable(values):
            return values
    if isinstance(dataset, Subset):
        values = attribute_of(dataset.dataset, names)
        return None if values is None else as_array(values)[np.asarray(dataset.indices)]
    if isinstance(dataset, ConcatDataset):
        parts = [attribute_of(part, names) for part in dataset.datasets]
        return None if any(part is None for part in parts) else np.concatenate([as_array(part) for part in parts])
    return None


def _plain_tensors(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """Return the tensors of a ``TensorDataset``, its subset or several of them, or None."""
    if type(dataset) is TensorDataset:
        return tuple(dataset.tensors)
    if type(dataset) is Subset and (whole := _plain_tensors(dataset.dataset)) is not None:
        chosen = torch.as_tensor(np.asarray(dataset.indices, np.int64))
        return tuple(tensor[chosen] for tensor in whole)
    if type(dataset) is ConcatDataset:
        parts = [_plain_tensors(part) for part in dataset.datasets]
        if all(part is not None and len(part) == len(parts[0] or ()) for part in parts):
            return tuple(map(torch.cat, zip(*parts, strict=True)))
    return None
