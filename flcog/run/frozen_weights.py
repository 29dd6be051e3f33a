"""Frozen weights of a run: written beside the checkpoints, which name the file, once unless steps or hooks change them, and loaded if
the model has other frozen weights. A decoder that is loaded again by its name is not written; a changed one is refused."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flcog.core.arguments import digest
from flcog.core.types import Params
from flcog.models import CausalLM
from flcog.models.causal_lm import scales
from flcog.models.lora import adapters
from flcog.run import checkpoint

SAMPLE = 4096
"""The most numbers of a tensor that are compared to find a change."""


class FrozenWeights:
    """What the clients' model holds and no optimiser changes, such as the pretrained weights beside which LoRA's adapters train.

    A step or a hook may change them, as the teacher of a student that is the mean of its last weights.
    """

    def __init__(self, module: nn.Module, constants: Params) -> None:
        self._constants, self._scales = constants, scales(module)
        self._digests = dict[str, tuple[Any, str]]()
        self._mine = set[str]()
        """The names of files that this run has written or read."""
        self._source, loaded = _loaded(module, constants)
        self._loaded = {name: constants[name] for name in loaded}
        self._written = {name: value for name, value in constants.items() if name not in self._loaded}

    @property
    def name(self) -> str:
        """The file's name, which fixes its content and the decoder's; empty where nothing is frozen."""
        return f"frozen-{self._digest(self._constants | self._scales)}.pt" if self._constants else ""

    def write(self, path: Path, payload: dict[str, Any]) -> None:
        """Write a checkpoint. The file that it names is written before it, and those that no checkpoint names any more are deleted."""
        name, folder = payload["frozen"], path.parent
        if self._written and not (folder / name).is_file():
            content = {"format": checkpoint.FORMAT, "params": self._written, "loaded": self._digest_of_loaded()}
            checkpoint.write(folder / name, content)
        checkpoint.write(path, payload)
        older = {file for file in self._mine - {name} if (folder / file).is_file()}
        self._mine.add(name)
        if older:
            beside = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith("frozen-")]
            for file in older - {str(checkpoint.peek(other).get("frozen")) for other in beside}:
                (folder / file).unlink(missing_ok=True)

    @torch.no_grad()
    def restore(self, path: Path, name: str) -> None:
        """Take over the frozen weights beside which the checkpoint at ``path`` was trained, from the file that it names."""
        self._mine.add(name)
        if name in ("", self.name):
            return
        file = path.parent / name
        saved: dict[str, Any] = checkpoint.read(file) if file.is_file() else {"loaded": None}
        if saved["loaded"] != self._digest_of_loaded():
            raise ValueError(
                f"{path} was trained with other frozen weights than {self._source or 'the model'} has now: load those, or restore {file}"
            )
        checkpoint.check_same_model(file, saved["params"], self._written)
        for key, constant in self._written.items():
            constant.copy_(saved["params"][key])

    def _digest_of_loaded(self) -> str:
        return self._digest(self._loaded | self._scales) if self._loaded else ""

    def _digest(self, params: Params) -> str:
        """Sixteen hex digits that fix names, shapes, types and values. A tensor is read again where torch counts a change."""
        lines = []
        for name, value in params.items():
            numbers = value.detach().reshape(-1)
            some = digest(numbers[:: max(1, len(numbers) // SAMPLE)])  # torch counts no changes through ``.data``
            mark = value.data_ptr(), None if value.is_inference() else value._version, some
            if name not in self._digests or self._digests[name][0] != mark:
                self._digests[name] = mark, digest(value)
            lines.append(f"{name} {value.dtype} {tuple(value.shape)} {self._digests[name][1]}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _loaded(module: nn.Module, constants: Params) -> tuple[str, list[str]]:
    """A decoder's name, and the frozen weights that are loaded again by it. Others, such as FFALoRA's, are drawn."""
    decoder = next(((name, part.source) for name, part in module.named_modules() if isinstance(part, CausalLM)), ("", ""))
    drawn = {f"{name}.{side}" for name, _ in adapters(module) for side in "AB"}
    return decoder[1], [name for name in constants if decoder[1] and name.startswith(f"{decoder[0]}.") and name not in drawn]
