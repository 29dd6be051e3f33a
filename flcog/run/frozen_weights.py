"""Frozen weights of a run: written once beside the checkpoints, which name the file, and loaded if the model has other frozen
weights. A decoder that is loaded again by its name is not written; a changed one is refused."""

import hashlib
from pathlib import Path

import torch
from torch import nn

from flcog.core.arguments import digest
from flcog.core.types import Params
from flcog.models import CausalLM
from flcog.models.causal_lm import scales
from flcog.models.lora import adapters
from flcog.run import checkpoint


class FrozenWeights:
    """What the clients' model holds and no client changes, such as the pretrained weights beside which LoRA's adapters train.

    Args:
        module: the model.
        constants: the model's own tensors, which are written over where a checkpoint has others.
    """

    def __init__(self, module: nn.Module, constants: Params) -> None:
        self._constants, self._scales = constants, scales(module)
        self._name: str | None = None
        self._source, loaded = _loaded(module, constants)
        self._loaded = {name: constants[name] for name in loaded}
        self._written = {name: value for name, value in constants.items() if name not in self._loaded}

    @property
    def name(self) -> str:
        """The file's name, which fixes its content and the decoder's; empty where nothing is frozen."""
        if self._name is None:
            self._name = f"frozen-{_digest(self._constants | self._scales)}.pt" if self._constants else ""
        return self._name

    def write(self, folder: Path) -> None:
        """Write the file into the folder of checkpoints, unless it is there or is not needed."""
        if self._written and not (folder / self.name).is_file():
            payload = {"format": checkpoint.FORMAT, "params": self._written, "loaded": self._digest_of_loaded()}
            checkpoint.write(folder / self.name, payload)

    @torch.no_grad()
    def restore(self, path: Path, name: str) -> None:
        """Take over the frozen weights beside which a checkpoint was trained.

        Args:
            path: the checkpoint.
            name: the file that it names; empty where it names none.
        """
        if name in ("", self.name):
            return
        if self._loaded and not self._written and not (path.parent / name).is_file():
            raise ValueError(self._refusal(path))
        saved, loaded = checkpoint.read_frozen(path.parent / name, path)
        # Without a digest, the file has all frozen weights; only those of a quantised decoder are useless without its scales.
        if (loaded or self._scales) and loaded != self._digest_of_loaded():
            raise ValueError(self._refusal(path))
        expected = self._written if loaded else self._constants
        checkpoint.check_same_model(path.parent / name, saved, expected)
        for key, constant in expected.items():
            constant.copy_(saved[key])
        self._name = None

    def _digest_of_loaded(self) -> str:
        return _digest(self._loaded | self._scales) if self._loaded else ""

    def _refusal(self, path: Path) -> str:
        now = self._source or "the model"
        return f"{path} was trained with other frozen weights than {now} has now: load those, such as an earlier revision"


def _loaded(module: nn.Module, constants: Params) -> tuple[str, list[str]]:
    """A decoder's name, and the frozen weights that are loaded again by it. Others, such as FFALoRA's, are drawn."""
    decoder = next(((name, part.source) for name, part in module.named_modules() if isinstance(part, CausalLM)), ("", ""))
    drawn = {f"{name}.{side}" for name, _ in adapters(module) for side in "AB"}
    return decoder[1], [name for name in constants if decoder[1] and name.startswith(f"{decoder[0]}.") and name not in drawn]


def _digest(params: Params) -> str:
    """Sixteen hex digits that fix names, shapes, types and values."""
    content = "\n".join(f"{name} {value.dtype} {tuple(value.shape)} {digest(value)}" for name, value in params.items())
    return hashlib.sha256(content.encode()).hexdigest()[:16]
