"""Samples held as arrays, and a data set's splits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.source import Source
from flcog.core.trees import Tree, first_leaf, leaves, map_leaves

Task = Literal["classification", "multilabel", "regression", "unlabelled"]
"""The kind of the targets; data without targets are unlabelled."""

LABELLED = ("classification", "multilabel", "regression")
"""The tasks with targets."""

Augment = Callable[[Tree, np.ndarray], Tree]
"""``augment(inputs [B, H, W, C] as stored, keys uint64 [B]) -> inputs``: one key per sample is all the randomness it gets."""


class Returned(NamedTuple):
    """Pairs as the data set returns them, where :class:`Samples` hold them in another form."""

    targets: Tree  # of any shape and kind, such as [N, 1], or one-hot rows
    unscaled: bool  # the inputs are images of bytes, from 0 to 255


@dataclass(frozen=True)
class Samples:
    """A set of samples held as arrays. Images are stored channels-last, [N, H, W, C], as decoders write them and CPUs like them.

    Inputs and targets may also be dicts, tuples or lists of such (a transformer's ``input_ids`` and ``attention_mask``). A network
    gets a dict by name where its forward has parameters of all these names, any other inputs as its one argument.

    Args:
        inputs: a tensor (moved to the device once), a memory-mapped array (read from disk batch by batch), or a
            :class:`flcog.core.source.Source`, which makes them when they are asked for.
        targets: class indices [N] (int64), multi-hot rows [N, C] (float32) or values [N] (float32); arrays become tensors. Splits by
            label and label statistics use the first of several targets. An empty tuple if there are none.
        users: a natural owner for each sample, where the data set has one: an array or a list of names or numbers.
        whole: whether the inputs are whole batches of the data set, which the steps of a LightningModule receive alone. Targets
            then serve splits and statistics.
        returned: the pairs that the steps of a LightningModule receive instead; None if they are the same.
        for_steps: the whole batches that they receive instead, if a ``collate_fn`` makes them.
        loaders: the number of samples of each loader, in their order, if several provide the set; else empty.
    """

    inputs: Tree
    targets: Tree = ()
    users: np.ndarray | None = None
    whole: bool = False
    returned: Returned | None = None
    for_steps: Source | None = None
    loaders: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        parts = [*leaves(self.inputs), *leaves(self.targets)]
        if len(counts := dict.fromkeys(len(leaf) if hasattr(leaf, "__len__") else 1 for leaf in parts)) > 1:
            found = " and ".join(map(str, counts))
            raise ValueError(f"inputs and targets have {found} rows: give tensors or arrays with one row per sample")
        if len(self) == 0:
            raise ValueError("the set has no samples: check the path, the split's name and any subset you asked for")
        object.__setattr__(self, "targets", map_leaves(_as_tensor, self.targets))
        if self.users is not None:
            object.__setattr__(self, "users", checked_users(self.users, len(self)))

    def __len__(self) -> int:
        return len(first_leaf(self.inputs))

    @property
    def labelled(self) -> bool:
        """Whether the samples have targets."""
        return not (isinstance(self.targets, tuple) and not self.targets)

    @property
    def labels(self) -> Tensor:
        """The targets, or the first of several: splits by label and label statistics use them."""
        if not self.labelled:
            raise ValueError(
                "the data set has no targets, which splits by label, label statistics and some methods need: name them "
                '(TorchDataset and LightningData take target="label", an index or a function), or leave these out'
            )
        labels: Tensor = first_leaf(self.targets)
        return labels

    @property
    def stored(self) -> bool:
        """Whether the inputs are tensors in memory, which are looked up on the device they live on."""
        return all(isinstance(leaf, Tensor) for leaf in leaves(self.inputs))

    def gather(self, indices: Tensor, keys: np.ndarray | None = None) -> Tree:
        """The stored inputs at ``indices``, on the device they live on (memory-mapped ones on the CPU).

        One key per sample seeds a source. None gives inputs without random changes.
        """
        if isinstance(self.inputs, Source):
            return self.inputs.read(indices.cpu().numpy(), keys)
        return map_leaves(lambda leaf: _gathered(leaf, indices), self.inputs)

    def joined(self, other: "Samples") -> "Samples":
        """These samples followed by others. Both lie in memory."""
        if not (self.stored and other.stored):
            raise ValueError("join_test needs samples in memory, and these are read while the model trains: leave it out")
        users = None if self.users is None or other.users is None else np.concatenate([self.users, other.users])
        inputs, targets = (
            pytree.tree_map(lambda *parts: torch.cat(list(map(torch.as_tensor, parts))), *pair)
            for pair in ((self.inputs, other.inputs), (self.targets, other.targets))
        )
        return Samples(inputs, targets, users)

    def subset(self, rows: np.ndarray) -> "Samples":
        """The samples at some rows, in memory."""
        index, users = torch.from_numpy(rows), None if self.users is None else self.users[rows]
        return replace(
            self, inputs=self.gather(index), users=users, loaders=(), **self._targets_by(lambda leaf: leaf[index.to(leaf.device)])
        )

    def as_steps_receive_it(self) -> "Samples":
        """The set as the steps of a LightningModule receive it."""
        return self if self.for_steps is None else replace(self, inputs=self.for_steps, whole=True, returned=None)

    def to(self, device: torch.device) -> "Samples":
        def moved(leaf: Any) -> Any:
            return leaf.to(device) if isinstance(leaf, Tensor) else leaf

        return replace(self, inputs=map_leaves(moved, self.inputs), **self._targets_by(moved))

    def _targets_by(self, change: Callable[[Any], Any]) -> dict[str, Any]:
        """The targets in both of their forms, changed."""
        returned = self.returned and self.returned._replace(targets=map_leaves(change, self.returned.targets))
        return {"targets": map_leaves(change, self.targets), "returned": returned}


def _as_tensor(targets: Any) -> Any:
    """Return an array of numbers as a tensor, and anything else as it is."""
    if not isinstance(targets, np.ndarray):
        return targets
    return torch.from_numpy(targets if targets.flags.writeable else targets.copy())


def _gathered(leaf: Any, indices: Tensor) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf.index_select(0, indices.to(leaf.device))
    read = torch.from_numpy(leaf[indices.cpu().numpy()])
    if (row := _not_finite(read)) is not None:
        raise ValueError(f"the inputs of sample {int(indices[row])} are NaN or infinite: correct or drop that sample")
    return read


def _not_finite(leaf: Tensor) -> int | None:
    """Return the first row with a NaN or infinite value, or None."""
    if not leaf.is_floating_point() or bool(leaf.sum().isfinite()):
        return None
    finite = leaf.isfinite()  # a sum of finite values may overflow
    return None if bool(finite.all()) else int((~finite).reshape(len(leaf), -1).any(1).nonzero()[0])


def checked_users(users: Any, count: int) -> np.ndarray:
    """Return the owners of ``count`` samples as an array. Refuse missing users, and users that are not single names or numbers."""
    users = users.detach().cpu().numpy() if isinstance(users, Tensor) else np.asarray(users)
    if users.shape != (count,):
        raise ValueError(f"{count} samples have users of shape {users.shape}: give one for each sample, in their order")
    if users.dtype.kind in "Of":
        missing = [sample for sample, user in enumerate(users.tolist()) if user is None or user != user]
        if missing:
            raise ValueError(f"sample {missing[0]} has no user, and {len(missing) - 1} others: fill or drop them")
    return users


def require_finite_inputs(samples: Samples, where: str) -> None:
    """Refuse NaN and infinite inputs in memory: in training they would look like a learning rate that is too high."""
    for leaf in leaves(samples.inputs):
        if isinstance(leaf, Tensor) and (row := _not_finite(leaf)) is not None:
            raise ValueError(f"{where} has NaN or infinite inputs, the first in sample {row}: correct or drop that sample")


class NewInputs(NamedTuple):
    """Inputs to predict, as :class:`Samples` hold them."""

    inputs: Tree
    names: Sequence[Any]
    """Of the rows: their index or id, their files, or their numbers."""


@dataclass(frozen=True)
class Splits:
    """What a data set's files hold, before anything is given to clients."""

    train: Samples
    test: Samples | None = None
    val: Samples | None = None
