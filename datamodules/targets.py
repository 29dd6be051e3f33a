"""Targets: converts arrays of class indices, names, multi-hot rows or values to tensors, for every part of a data set."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flcog.core.checks import one_of
from flcog.data import FederatedDataModule, Task

TaskOrAuto = Literal["auto", "classification", "multilabel", "regression", "unlabelled"]


@dataclass(frozen=True)
class Targets:
    """A data set's targets: class indices [N], multi-hot rows [N, C], or values [N] or [N, C], by part."""

    task: Task
    num_classes: int  # classes or labels; for regression, bins
    tensors: dict[str, Tensor]
    class_names: tuple[str, ...] | None = None


class WithTargets(FederatedDataModule, ABC):
    """A data module that infers its task and classes from its targets, unless they are given."""

    @property
    @abstractmethod
    def _learnt(self) -> Targets:
        """The targets that were read."""

    @property
    def task(self) -> Task:  # type: ignore[override]
        """Given, or read from the targets."""
        return self._learnt.task

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """Given, or read from the targets."""
        return self._learnt.num_classes

    @property
    def class_names(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """The targets, where they are text, in alphabetical order."""
        return self._learnt.class_names


def read_targets(
    given: Mapping[str, tuple[np.ndarray, str]],
    task: Literal["auto", "classification", "multilabel", "regression"] = "auto",
    num_classes: int | None = None,
    classes: Sequence[str] | None = None,
) -> Targets:
    """Return the targets of all parts of a set, which are given as an array and its name in messages; "train" must exist.

    ``auto`` takes integers and names for classes and floats for values. ``multilabel`` takes [N] and [N, 1] for one label.
    """
    one_of(None, ("auto", "classification", "multilabel", "regression"), task=task)
    names = _class_names(*given["train"], classes)
    targets = {part: _numbered(array, names, where) for part, (array, where) in given.items()}
    known = _task_of(targets["train"], given["train"][1]) if task == "auto" else task
    if known == "multilabel":  # a single label is a column, too
        targets, names = {part: array.reshape(len(array), -1) for part, array in targets.items()}, None
    count = num_classes if num_classes is not None else _count_classes(targets, known, names)
    return Targets(known, count, {part: _targets(array, known, given[part][1]) for part, array in targets.items()}, names)


def _class_names(targets: np.ndarray, where: str, classes: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names of the classes, as given or in alphabetical order, where targets are text."""
    if targets.dtype.kind not in "OUST":
        return None
    if not all(isinstance(name, str) for name in targets.ravel().tolist()):
        raise ValueError(f"{where} must be numbers or text throughout; some are neither, such as missing values")
    return tuple(classes) if classes is not None else tuple(np.unique(targets.astype(str)).tolist())


def _numbered(targets: np.ndarray, names: tuple[str, ...] | None, where: str) -> np.ndarray:
    """Targets as numbers, names as class indices, [N] or [N, C] with C > 1."""
    if targets.ndim not in (1, 2):
        raise ValueError(f"{where} must be [N], [N, 1] or [N, C]; its shape is {targets.shape}")
    if names is not None:
        numbers = {name: number for number, name in enumerate(names)}
        unknown = next((str(name) for name in targets.ravel().tolist() if name not in numbers), None)
        if unknown is not None:
            raise ValueError(f"{where} holds the class {unknown!r}, which is none of {', '.join(names[:9])}")
        targets = np.array([numbers[name] for name in targets.ravel().tolist()], np.int64).reshape(targets.shape)
    return targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets


def _task_of(targets: np.ndarray, where: str) -> Task:
    if targets.ndim == 1:
        return "regression" if targets.dtype.kind == "f" else "classification"
    if not np.isin(targets, (0, 1)).all():
        if targets.dtype.kind == "f":
            return "regression"
        raise ValueError(
            f"{where} has {targets.shape[1]} columns of whole numbers: labels are only 0 and 1; set task=regression for values"
        )
    return "classification" if (targets.sum(1) == 1).all() else "multilabel"


def _count_classes(targets: dict[str, np.ndarray], task: Task, names: tuple[str, ...] | None) -> int:
    if task == "regression":
        return 10
    if names is not None:
        return len(names)
    if targets["train"].ndim == 2:
        return targets["train"].shape[1]
    return int(max(part.max(initial=0) for part in targets.values())) + 1


def _targets(targets: np.ndarray, task: Task, where: str) -> Tensor:
    if task in ("regression", "multilabel"):
        return torch.from_numpy(targets.astype(np.float32))
    if targets.ndim == 2:
        if not np.isin(targets, (0, 1)).all() or (targets.sum(1) != 1).any():
            raise ValueError(f"{where} has rows that are not one-hot: give class indices, or set task to multilabel")
        targets = targets.argmax(1)
    if targets.dtype.kind == "f" and (targets != np.floor(targets)).any():
        raise ValueError(f"{where} holds fractions, which cannot be class indices: set task to regression")
    return torch.from_numpy(targets.astype(np.int64))
