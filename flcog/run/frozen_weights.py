"""Frozen weights of a run: written beside the checkpoints, which name the file, once unless steps or hooks change them, and loaded if
the model has other frozen weights. A decoder that is loaded again by its name is not written; a changed one is refused."""

import hashlib
import warnings
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
"""The most numbers of a tensor that are compared to find a change through ``.data``, which torch does not count."""


class FrozenWeights:
    """What the clients' model holds and no optimiser changes, such as the pretrained weights beside which LoRA's adapters train.

    A step or a hook may change them, as the teacher of a student that is the mean of its last weights.

    Args:
        module: the model.
        constants: the model's own tensors, which are written over where a checkpoint has others.
        several: whether the run has several clients.
    """

    def __init__(self, module: nn.Module, constants: Params, several: bool) -> None:
        self._module, self._constants, self._scales, self._several = module, constants, scales(module), several
        self._marks, self._digests = dict[str, Any](), dict[str, str]()
        self._training = self._told = False
        self._mine = set[str]()
        """The names of files that this run has written or read."""
        self._source, loaded = _loaded(module, constants)
        self._loaded = {name: constants[name] for name in loaded}
        self._written = {name: value for name, value in constants.items() if name not in self._loaded}

    @property
    def name(self) -> str:
        """The file's name, which fixes its content and the decoder's; empty where nothing is frozen."""
        self.look()
        return f"frozen-{self._digest(self._constants | self._scales)}.pt" if self._constants else ""

    def look(self, training: bool = False) -> None:
        """Find the tensors that have changed since the last look.

        Args:
            training: whether later changes are made by steps or hooks of the training.
        """
        now = {name: _mark(value) for name, value in self._constants.items()}
        changed = [name for name in now if self._marks.get(name) not in (None, now[name])]
        self._marks = now
        for name in changed:
            self._digests.pop(name, None)
        if self._training and not self._told:
            self._warn(changed)
        self._training = self._training or training

    def _warn(self, changed: list[str]) -> None:
        """Say once what does not happen to frozen parameters that a step or a hook changes."""
        present = {id(value) for value in self._module.parameters()}
        lost = [name for name, value in self._constants.items() if isinstance(value, nn.Parameter) and id(value) not in present]
        self._told = bool(lost or (changed and self._several))
        if lost:
            warnings.warn(
                f"a step or a hook has put another tensor in the place of the frozen parameter {lost[0]}: checkpoints, and evaluations "
                "after a step, hold the former values; change the values in place, as load_state_dict does",
                stacklevel=3,
            )
        elif self._told:
            more = f" and {len(changed) - 1} others" if len(changed) > 1 else ""
            warnings.warn(
                f"frozen parameters change during training ({changed[0]}{more}): they are not averaged or sent, and clients that train one "
                "after another continue each other's values",
                stacklevel=3,
            )

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
        """Take over the frozen weights beside which a checkpoint was trained.

        Args:
            path: the checkpoint.
            name: the file that it names; empty where it names none.
        """
        self._mine.add(name)
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

    def _digest_of_loaded(self) -> str:
        return self._digest(self._loaded | self._scales) if self._loaded else ""

    def _digest(self, params: Params) -> str:
        """Sixteen hex digits that fix names, shapes, types and values."""
        for name, value in params.items():
            if name not in self._digests:
                self._digests[name] = digest(value)
        content = "\n".join(f"{name} {value.dtype} {tuple(value.shape)} {self._digests[name]}" for name, value in params.items())
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def _refusal(self, path: Path) -> str:
        now = self._source or "the model"
        return f"{path} was trained with other frozen weights than {now} has now: load those, such as an earlier revision"


def _loaded(module: nn.Module, constants: Params) -> tuple[str, list[str]]:
    """A decoder's name, and the frozen weights that are loaded again by it. Others, such as FFALoRA's, are drawn."""
    decoder = next(((name, part.source) for name, part in module.named_modules() if isinstance(part, CausalLM)), ("", ""))
    drawn = {f"{name}.{side}" for name, _ in adapters(module) for side in "AB"}
    return decoder[1], [name for name in constants if decoder[1] and name.startswith(f"{decoder[0]}.") and name not in drawn]


def _mark(value: torch.Tensor) -> tuple[Any, ...]:
    """What changes with a tensor: its place in memory, torch's count of changes, and some of its numbers."""
    numbers = value.detach().reshape(-1)
    counted = None if value.is_inference() else value._version
    return value.data_ptr(), counted, digest(numbers[:: max(1, len(numbers) // SAMPLE)])
