"""ArrayData: a data module for your own arrays, from an .npz file in MedMNIST's layout or from Python."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from flcog.core.checks import one_of
from flcog.core.files import arrays_in
from flcog.data import Preprocess, Samples, Splits
from flcog.data.preprocess import moments
from flcog.datamodules.augmentations import Augmentation, AugmentedImages
from flcog.datamodules.files import reading, require_files, require_names
from flcog.datamodules.targets import Targets, WithTargets, read_targets

# An np.ndarray or a Tensor. With those types the command line's help would list all of their subclasses, for each argument.
Array = Any


class ArrayData(WithTargets, AugmentedImages):
    """Any images, feature rows or token ids with class indices, multi-hot rows or real values as targets.

    Reads one ``.npz`` file with the arrays ``train_images``, ``train_labels`` and, if there are such sets, ``test_*`` and
    ``val_*``. This is the layout of MedMNIST (Yang et al. 2023, https://medmnist.com), and all of its 2D sets can be read. The
    arrays may also be called ``inputs`` and ``targets``.

    Inputs are uint8 images or features (scaled to [0, 1]), floats, or wider integers, which are token ids. Images are [N, H, W]
    or [N, H, W, C], or [N, C, H, W] with ``layout=NCHW``. Targets are [N] or [N, 1], with integers or text for classes and floats
    for values, or [N, C]: rows of 0 and 1 are labels, other floats are several values. Rows with exactly one 1 each are classes
    too, and with ``task=multilabel`` a single column of 0 and 1 is one label. Memory-mapped arrays, from Python, stay on disk.

    Args:
        path: the ``.npz`` file; None if arrays are given.
        task: the kind of targets; ``auto`` infers it from them.
        num_classes: the number of classes or labels, if some do not occur. For regression, the number of bins that replace
            classes in methods that use label counts (10 by default).
        mean: subtracted from each channel or feature, after uint8 has been scaled to [0, 1]; "auto" for the mean of a training set in
            memory, None for no change.
        std: divides each channel or feature; as ``mean``.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``.
        layout: the order of an image's axes: NHWC as in numpy and image files, NCHW as in torch's tensors.
        train_inputs: training inputs, from Python only.
        train_targets: training targets, from Python only.
        test_inputs: test inputs, from Python only.
        test_targets: test targets, from Python only.
        val_inputs: validation inputs, from Python only.
        val_targets: validation targets, from Python only.
        train_users: the owner of each training sample, from Python only. Every user is a client unless a partitioner is given.

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
        layout: Literal["NHWC", "NCHW"] = "NHWC",
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
        if path is not None and self._given:
            raise ValueError("ArrayData reads either a path or arrays (train_inputs and train_targets): give only one")
        one_of(self, ("NHWC", "NCHW"), layout=layout)
        self.path, self.augmentation, self.train_users, self.layout = path, augmentation, train_users, layout
        self.mean, self.std, self._task, self._num_classes = mean, std, task, num_classes

    @property
    def _learnt(self) -> Targets:
        return self._read[0]

    def load(self) -> Splits:
        return self._read[1]

    def preprocess(self) -> Callable[[Tensor], Tensor]:
        return Preprocess(*_channel_statistics(self._read[1].train.inputs)) if self.mean == "auto" else super().preprocess()

    @cached_property
    def _read(self) -> tuple[Targets, Splits]:
        source = "ArrayData" if self.path is None else self.path
        arrays = self._given if self.path is None else _read_archive(Path(self.path))
        parts = [part for part in _PARTS if part == "train" or f"{part}_inputs" in arrays or f"{part}_targets" in arrays]
        require_names(arrays, [f"{part}_{kind}" for part in parts for kind in ("inputs", "targets")], source)
        targets = {part: (arrays[f"{part}_targets"], f"{source}: {part}_targets") for part in parts}
        learnt = read_targets(targets, self._task, self._num_classes)
        samples = {}
        for part in parts:
            inputs = _inputs(arrays[f"{part}_inputs"], f"{source}: {part}_inputs", self.layout)
            samples[part] = Samples(inputs, learnt.tensors[part], self.train_users if part == "train" else None)
        kinds = {part: str(each.inputs.dtype).removeprefix("torch.") for part, each in samples.items()}
        if len(set(kinds.values())) > 1:
            raise ValueError(
                f"{source}: the inputs have the types {', '.join(f'{part} {kind}' for part, kind in kinds.items())}: give all the same "
                "type, because uint8 is scaled to [0, 1], floats stay as they are and wider integers are token ids"
            )
        return learnt, Splits(**samples)


_PARTS = ("train", "test", "val")


def _read_archive(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file that ``ArrayData`` knows, named as its arguments."""
    require_files("ArrayData", [path], "check --data.path; the help of ArrayData describes the file")
    kinds = {"images": "inputs", "inputs": "inputs", "labels": "targets", "targets": "targets"}
    known = {f"{part}_{kind}": f"{part}_{name}" for part in _PARTS for kind, name in kinds.items()}
    with reading(path), arrays_in(path) as archive:
        return {known[name]: archive[name] for name in archive.files if name in known}


def _inputs(inputs: np.ndarray, where: str, layout: str) -> Tensor | np.ndarray:
    if inputs.ndim == 4:
        channels, others, other = (1, 3, "NHWC") if layout == "NCHW" else (3, 1, "NCHW")
        if inputs.shape[others] in (1, 3) and inputs.shape[channels] not in (1, 3):
            raise ValueError(f"{where} has shape {inputs.shape}, and layout is {layout}: set layout={other}")
        inputs = inputs.transpose(0, 2, 3, 1) if layout == "NCHW" else inputs
    if isinstance(inputs, np.memmap) and inputs.dtype in (np.uint8, np.float32):
        return inputs if inputs.ndim != 3 else inputs[..., None]
    if inputs.dtype.kind in "bf":
        inputs = inputs.astype(np.float32, copy=False)
    elif inputs.dtype != np.uint8:
        if inputs.ndim > 2:
            raise ValueError(f"{where} has type {inputs.dtype}: images must be uint8 (0 to 255) or floats")
        inputs = inputs.astype(np.int64, copy=False)
    if inputs.ndim == 3:
        inputs = inputs[..., None]
    return torch.from_numpy(np.ascontiguousarray(inputs))


def _channel_statistics(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel or feature over the whole set, on the scale that ``Preprocess`` expects."""
    channels = inputs.reshape(-1, inputs.shape[-1])
    if inputs.dtype != torch.uint8:
        return moments(channels)
    # A histogram instead of a copy of the bytes as doubles.
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channel, minlength=256) for channel in channels.unbind(1)]).double()
    means = counts @ levels / counts.sum(1)
    stds = (counts @ levels.square() / counts.sum(1) - means.square()).clamp(min=0).sqrt()
    stds[stds == 0] = 1
    return tuple(means.tolist()), tuple(stds.tolist())
