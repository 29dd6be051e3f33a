"""Frozen weights of a run: written once beside the checkpoints, which name the file, and loaded if the model has other frozen
weights."""

import hashlib
from pathlib import Path

import torch

from flcog.core.arguments import digest
from flcog.core.types import Params
from flcog.run import checkpoint


class FrozenWeights:
    """What the clients' model holds and no client changes, such as the pretrained weights beside which LoRA's adapters train.

    Args:
        constants: the model's own tensors, which are written over where a checkpoint has others.
    """

    def __init__(self, constants: Params) -> None:
        self._constants = constants
        self._name: str | None = None

    @property
    def name(self) -> str:
        """The file's name, which fixes its content; empty where nothing is frozen."""
        if self._name is None:
            self._name = f"frozen-{_digest(self._constants)}.pt" if self._constants else ""
        return self._name

    def write(self, folder: Path) -> None:
        """Write the file into the folder of checkpoints, unless it is there."""
        if self.name and not (folder / self.name).is_file():
            checkpoint.write(folder / self.name, {"format": checkpoint.FORMAT, "params": self._constants})

    @torch.no_grad()
    def restore(self, path: Path, name: str) -> None:
        """Take over the frozen weights beside which a checkpoint was trained.

        Args:
            path: the checkpoint.
            name: the file that it names; empty where it names none.
        """
        if name in ("", self.name):
            return
        saved = checkpoint.read_frozen(path.parent / name, path)
        checkpoint.check_same_model(path.parent / name, saved, self._constants)
        for key, constant in self._constants.items():
            constant.copy_(saved[key])
        self._name = None


def _digest(params: Params) -> str:
    """Sixteen hex digits that fix names, shapes, types and values."""
    content = "\n".join(f"{name} {value.dtype} {tuple(value.shape)} {digest(value)}" for name, value in params.items())
    return hashlib.sha256(content.encode()).hexdigest()[:16]
