"""Check that labels and targets are in range, finite and of the right shape.

Without these checks, training ends in an index error far from the file with the bad label.
"""

import numpy as np
from torch import Tensor


def require_labels(labels: np.ndarray | Tensor, num_classes: int, where: str) -> None:
    """Raise an error that names the first label that is not a whole number from 0 to below ``num_classes``.

    ``where`` names the file and the entry that contain the labels.
    """
    values = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.dtype.kind not in "iuf" or values.ndim != 1:
        raise ValueError(f"{where} must hold one number per sample; its type is {values.dtype} and its shape {values.shape}")
    good = (values >= 0) & (values < num_classes)
    if values.dtype.kind == "f":
        good &= values == np.floor(values)
    if not good.all():
        row = int(np.argmin(good))
        raise ValueError(
            f"{where} has label {values[row]} at row {row}: {num_classes} classes are numbered 0 to {num_classes - 1}"
        )


def require_targets(targets: Tensor, task: str, num_classes: int, where: str) -> None:
    """The same for the targets of any task: class indices [N], multi-hot rows [N, num_classes], or values without NaN."""
    if task == "classification":
        if targets.ndim != 1:
            raise ValueError(
                f"{where} needs one class index per sample; its targets have shape {tuple(targets.shape)}: give targets.argmax(1) for "
                'one-hot rows, or set task = "multilabel"'
            )
        require_labels(targets, num_classes, where)
    elif task == "multilabel":
        if targets.ndim != 2 or targets.shape[1] != num_classes:
            raise ValueError(
                f"{where} needs a row of {num_classes} labels per sample; its targets have shape {tuple(targets.shape)}"
            )
        if (wrong := (targets != 0) & (targets != 1)).any():
            row, label = wrong.nonzero()[0].tolist()
            raise ValueError(f"{where} holds {targets[row, label].item()} for label {label} at row {row}: labels are 0 or 1")
    elif task == "regression" and not targets.isfinite().all():
        row = int((~targets.isfinite()).nonzero()[0, 0])
        raise ValueError(f"{where} has the value {targets[row].tolist()} at row {row}: targets must be finite")
