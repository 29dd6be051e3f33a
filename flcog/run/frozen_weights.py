"""Frozen weights of a run: written once beside the checkpoints, which name the file, and loaded if the model has other frozen
weights. A decoder that is loaded again by its name is not written; a changed one is refused."""

import hashlib
from pathlib import Path

import torch
from torch import nn

from flcog.core.arguments import digest
from flcog.core.types import Params
from flcog.models import CausalLM
from flcog.models.lora import adapters
from flcog.run import checkpoint


class FrozenWeights:
    """What the clients' model holds and no client changes, such as the pretrained weights beside which LoRA's adapters train.

    Args:
        module: the model.
        constants: the model's own tensors, which are written over where a checkpoint has others.
    """

    def __init__(self, module: nn.Module, constants: Params) -> None:
        self._constants = constants
        self._name: str | None = None
        self._source = _source(module, constants)

    @property
    def name(self) -> str:
        """The file's name, which fixes its content; empty where nothing is frozen."""
        if self._name is None:
            self._name = f"frozen-{_digest(self._constants)}.pt" if self._constants else ""
        return self._name

    def write(self, folder: Path) -> None:
        """Write the file into the folder of checkpoints, unless it is there or is not needed."""
        if self.name and not self._source and not (folder / self.name).is_file():
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
        if self._source and not (path.parent / name).is_file():
            raise ValueError(
                f"{path} was trained with other frozen weights than {self._source} has now: load those, such as an earlier revision"
            )
        saved = checkpoint.read_frozen(path.parent / name, path)
        checkpoint.check_same_model(path.parent / name, saved, self._constants)
        for key, constant in self._constants.items():
            constant.copy_(saved[key])
        self._name = None


def _source(module: nn.Module, constants: Params) -> str:
    """The decoder that is loaded again by its name and has all of them; empty if others, such as FFALoRA's, are drawn."""
    decoder = next(((name, part.source) for name, part in module.named_modules() if isinstance(part, CausalLM)), ("", ""))
    drawn = {f"{name}.{side}" for name, _ in adapters(module) for side in "AB"}
    return decoder[1] if all(name.startswith(f"{decoder[0]}.") and name not in drawn for name in constants) else ""


def _digest(params: Params) -> str:
    """Sixteen hex digits that fix names, shapes, types and values."""
    content = "\n".join(f"{name} {value.dtype} {tuple(value.shape)} {digest(value)}" for name, value in params.items())
    return hashlib.sha256(content.encode()).hexdigest()[:16]
