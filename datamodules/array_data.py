"""ArrayData: a data module for your own arrays, from an .npz file in MedMNIST's layout or from Python."""

import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from flcog.data import Augment, FederatedDataModule, Preprocess, Samples, Splits, Task
from flcog.datamodules.augmentations import Augmentation, augmentation
from flcog.datamodules.files import reading, require_files, require_finite, standardisation

# An np.ndarray or a Tensor. With those types the command line's help would list all of their subclasses, for each argument.
Array = Any


class ArrayData(FederatedDataModule):
    """Any images, feature rows or token ids with class indices, multi-hot rows or real values as targets.

    Reads one ``.npz`` with the arrays ``train_images``, ``train_labels`` and, where there are such sets, ``test_*`` and
    ``val_*``, which is the layout of MedMNIST (Yang et al. 2023, https://medmnist.com); all of its 2D sets can be read. Arrays
    may be called ``inputs`` and ``targets`` as well.

    Inputs are uint8 images or features (scaled to [0, 1]), floats, or wider integers, which are token ids. Images are [N, H, W]
    or [N, H, W, C]. Targets are [N] or [N, 1], of which integers are classes and floats are values, or [N, C] of 0 and 1. Rows
    with exactly one 1 each are classes too. Memory-mapped arrays, from Python, stay on disk.

    Args:
        path: the ``.npz`` file; None where arrays are given.
        task: what the targets are, if not what they look like.
        num_classes: number of classes or labels, if it is more than occur; for regression, the bins that stand for classes where
            a method needs a distribution of labels (10 by default).
        mean: subtracted from each channel or feature, after uint8 has been scaled to [0, 1]; "auto" is the training set's, None
            leaves values as they are.
        std: divides each channel or feature; as ``mean``.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``.
        train_inputs: training inputs, from Python only.
        train_targets: training targets, from Python only.
        test_inputs: test inputs, from Python only.
        test_targets: test targets, from Python only.
        val_inputs: validation inputs, from Python only.
        val_targets: validation targets, from Python only.
        train_users: the natural owner of each training sample, from Python only.

    Example:
        >>> import numpy as np
        >>> features, values = np.random.rand(100, 5), np.random.rand(100)
        >>> ArrayData(train_inputs=features, train_targets=values).federation.task
        'regression'
    """

    def __init__(
        self,
        path: str | None = None,
        task: Literal["auto", "classification", "multilabel", "regression"] = "auto",
        num_classes: int | None = None,
        mean: list[float] | Literal["auto"] | None = None,
        std: list[float] | Literal["auto"] | None = None,
        augmentation: Augmentation = "none",
        train_inputs: Array | None = None,
        train_targets: Array | None = None,
        test_inputs: Array | None = None,
        test_targets: Array | None = None,
        val_inputs: Array | None = None,
        val_targets: Array | None = None,
        train_users: Array | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arrays = {
            "train_inputs": train_inputs,
            "train_targets": train_targets,
            "test_inputs": test_inputs,
            "test_targets": test_targets,
            "val_inputs": val_inputs,
            "val_targets": val_targets,
        }
        self._given = {name: np.asanyarray(array) for name, array in arrays.items() if array is not None}
        if (path is None) == (not self._given):
            raise ValueError("ArrayData reads either a path or arrays (train_inputs and train_targets): give one of the two")
        if (mean == "auto") != (std == "auto") or (mean is None) != (std is None):
            raise ValueError(f"mean and std come together; got mean={mean} and std={std}")
        self.path, self.augmentation, self.train_users = path, augmentation, train_users
        self.mean, self.std = mean, std
        self._task, self._num_classes = task, num_classes

    @property
    def task(self) -> Task:  # type: ignore[override]
        """Given, or read from the targets."""
        return self._read[0]

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """Given, or read from the targets."""
        return self._read[1]

    def load(self) -> Splits:
        return self._read[2]

    def preprocess(self) -> Callable[[Tensor], Tensor]:
        if self.mean is None or self.std is None:
            return Preprocess()
        if isinstance(self.mean, str) or isinstance(self.std, str):
            return Preprocess(*_channel_statistics(self._read[2].train.inputs))
        return Preprocess(tuple(self.mean), tuple(self.std))

    def augment(self) -> Augment | None:
        return augmentation(self.augmentation)

    @cached_property
    def _read(self) -> tuple[Task, int, Splits]:
        source = "ArrayData" if self.path is None else self.path
        arrays = self._given if self.path is None else _read_archive(Path(self.path))
        names = {part: pair for part in _PARTS if (pair := _names_of(part, arrays, source)) is not None}
        targets = {part: _check_targets(arrays[name], f"{source}: {name}") for part, (_, name) in names.items()}
        task = _task_of(targets["train"], f"{source}: {names['train'][1]}") if self._task == "auto" else self._task
        num_classes = self._num_classes if self._num_classes is not None else _count_classes(targets, task)
        if self._num_classes is None and num_classes > _MOST_CLASSES:
            raise ValueError(
                f"{source}: {names['train'][1]} and its like hold labels up to {num_classes - 1}: number the classes from 0, or give "
                "num_classes if there are so many"
            )
        samples = {}
        for part, (inputs_name, targets_name) in names.items():
            inputs = _inputs(arrays[inputs_name], f"{source}: {inputs_name}")
            users = self.train_users if part == "train" else None
            if len(inputs) != len(targets[part]) or len(inputs) == 0:
                raise ValueError(
                    f"{source}: {inputs_name} has {len(inputs)} rows and {targets_name} has {len(targets[part])}: each input needs "
                    "a target, and there must be some"
                )
            samples[part] = Samples(inputs, _targets(targets[part], task, num_classes, f"{source}: {targets_name}"), users)
        if self._num_classes is None and task == "classification" and samples["train"].targets.min() > 0:
            warnings.warn(f"{source}: no label is 0, and {num_classes} classes are assumed: labels count from 0", stacklevel=2)
        return task, num_classes, Splits(**samples)


_PARTS = ("train", "test", "val")
_MOST_CLASSES = 1_000_000
"""More are taken for a mistake, where nobody gave their number: tables with a column for each would fill the memory."""


def _read_archive(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file that ``ArrayData`` knows."""
    require_files("ArrayData", [path], "check --data.path; the help of ArrayData describes the file")
    with reading(path):
        archive = np.load(path, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f"{path} holds a single array: an .npz with train_images and train_labels is wanted")
    arrays = {}
    with archive:
        for name in archive.files:
            if name in {f"{part}_{kind}" for part in _PARTS for kind in ("images", "inputs", "labels", "targets")}:
                try:
                    arrays[name] = archive[name]
                except Exception as error:
                    objects = "it holds Python objects: save it as numbers" if "allow_pickle" in str(error) else str(error)
                    raise ValueError(f"{path}: {name} cannot be read: {objects}") from error
        if not arrays:
            raise ValueError(f"{path} has no train_images; it holds {', '.join(archive.files) or 'nothing'}")
    return arrays


def _names_of(part: str, arrays: dict[str, np.ndarray], source: str) -> tuple[str, str] | None:
    """What the inputs and the targets of this part are called, or None if there are none."""
    inputs = next((name for name in (f"{part}_images", f"{part}_inputs") if name in arrays), None)
    targets = next((name for name in (f"{part}_labels", f"{part}_targets") if name in arrays), None)
    if inputs is not None and targets is not None:
        return inputs, targets
    if part == "train" or inputs is not None or targets is not None:
        raise ValueError(f"{source} needs {part}_images and {part}_labels together; it has {', '.join(sorted(arrays))}")
    return None


def _check_targets(targets: np.ndarray, where: str) -> np.ndarray:
    """Targets as numbers, [N] or [N, C] with C > 1."""
    if targets.dtype.kind not in "biuf":
        raise ValueError(f"{where} must be numbers; its type is {targets.dtype}")
    if targets.dtype.kind == "f":
        require_finite(targets, where)
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim not in (1, 2):
        raise ValueError(f"{where} must be [N], [N, 1] or [N, C]; its shape is {targets.shape}")
    return targets


def _task_of(targets: np.ndarray, where: str) -> Task:
    if targets.ndim == 1:
        return "regression" if targets.dtype.kind == "f" else "classification"
    if not np.isin(targets, (0, 1)).all():
        raise ValueError(
            f"{where} has {targets.shape[1]} columns, so it should hold only 0 and 1; regression takes one value per sample"
        )
    return "classification" if (targets.sum(1) == 1).all() else "multilabel"


def _count_classes(targets: dict[str, np.ndarray], task: Task) -> int:
    if task == "regression":
        return 10
    if targets["train"].ndim == 2:
        return targets["train"].shape[1]
    return int(max(part.max(initial=0) for part in targets.values())) + 1


def _targets(targets: np.ndarray, task: Task, num_classes: int, where: str) -> Tensor:
    if task == "regression":
        if targets.ndim != 1:
            raise ValueError(f"{where} must be one value per sample for regression; its shape is {targets.shape}")
        return torch.from_numpy(targets.astype(np.float32))
    if task == "multilabel":
        if targets.ndim != 2 or targets.shape[1] != num_classes or not np.isin(targets, (0, 1)).all():
            raise ValueError(f"{where} must be [N, {num_classes}] of 0 and 1 for multi-label data; its shape is {targets.shape}")
        return torch.from_numpy(targets.astype(np.float32))
    if targets.ndim == 2:
        if not np.isin(targets, (0, 1)).all() or (targets.sum(1) != 1).any():
            raise ValueError(f"{where} has rows that are not one-hot: give class indices, or set task to multilabel")
        targets = targets.argmax(1)
    if targets.dtype.kind == "f" and (targets != np.floor(targets)).any():
        raise ValueError(f"{where} holds fractions, which cannot be class indices: set task to regression")
    outside = (targets < 0) | (targets >= num_classes)
    if outside.any():
        first = int(np.argmax(outside))
        raise ValueError(
            f"{where} holds {targets[first]} at row {first}: {num_classes} classes are numbered 0 to {num_classes - 1}"
        )
    return torch.from_numpy(targets.astype(np.int64))


def _inputs(inputs: np.ndarray, where: str) -> Tensor | np.ndarray:
    if inputs.dtype.kind not in "biuf":
        raise ValueError(f"{where} must be numbers; its type is {inputs.dtype}")
    if inputs.ndim not in (2, 3, 4):
        raise ValueError(f"{where} must be images [N, H, W] or [N, H, W, C], or rows [N, F]; its shape is {inputs.shape}")
    if inputs.ndim == 4 and inputs.shape[1] in (1, 3) and inputs.shape[3] not in (1, 3):
        raise ValueError(
            f"{where} has shape {inputs.shape}, channels first: save it as [N, H, W, C], e.g. with .transpose(0, 2, 3, 1)"
        )
    if isinstance(inputs, np.memmap) and inputs.dtype in (np.uint8, np.float32):
        return inputs if inputs.ndim != 3 else inputs[..., None]
    if inputs.dtype.kind == "f":
        require_finite(inputs, where)
        inputs = inputs.astype(np.float32, copy=False)
    elif inputs.dtype == np.bool_:
        inputs = inputs.astype(np.float32)
    elif inputs.dtype != np.uint8:
        if inputs.ndim > 2:
            raise ValueError(f"{where} has type {inputs.dtype}: images must be uint8 (0 to 255) or floats")
        inputs = inputs.astype(np.int64, copy=False)
    if inputs.ndim == 3:
        inputs = inputs[..., None]
    return torch.from_numpy(np.ascontiguousarray(inputs))


def _channel_statistics(inputs: Tensor | np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel or feature over the whole set, on the scale that ``Preprocess`` expects."""
    if not isinstance(inputs, Tensor):
        raise ValueError("mean and std cannot be computed of a memory-mapped array: give them as numbers")
    if inputs.dtype == torch.int64:
        raise ValueError("mean and std are of no use to token ids: leave them out")
    if inputs.ndim == 2:
        mean, std = standardisation(inputs / 255 if inputs.dtype == torch.uint8 else inputs)
        return mean, std
    # A histogram instead of a copy of the images as doubles, where they are bytes.
    channels = inputs.reshape(-1, inputs.shape[-1])
    if inputs.dtype != torch.uint8:
        return standardisation(channels)
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channel, minlength=256) for channel in channels.unbind(1)]).double()
    means = counts @ levels / counts.sum(1)
    variances = counts @ levels.square() / counts.sum(1) - means.square()
    stds = variances.clamp(min=0).sqrt()
    stds[stds == 0] = 1
    return tuple(means.tolist()), tuple(stds.tolist())
