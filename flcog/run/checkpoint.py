"""Checkpoints: tensors and primitives only, loaded with ``weights_only=True``, written aside and renamed."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flcog.core.files import RUN_REMEDY, replacing
from flcog.core.text import first_line
from flcog.core.trees import map_once
from flcog.method import Callback

FORMAT = 1


def write(path: Path, payload: dict[str, Any]) -> None:
    """Write ``payload`` so that a kill at any moment leaves the old file or the new one, never half of one.

    Tensors are copied to the CPU first. Otherwise ``torch.load`` would need the same GPU by default.
    """
    with replacing(path, remedy=RUN_REMEDY) as file:
        on_cpu = map_once(lambda value: value.cpu() if isinstance(value, torch.Tensor) else value, payload)
        torch.save(on_cpu, file)


def read(path: Path, mmap: bool = False) -> dict[str, Any]:
    """Load a checkpoint without executing code that it might contain. ``mmap`` leaves tensors in the file until they are used."""
    if not path.is_file():
        raise ValueError(
            f"no checkpoint at {path}: give a file that a run wrote under checkpoints/, or 'last' for the newest run's"
        )
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # readers of archives and pickles raise nearly every kind of error on broken files
        reason = first_line(error).partition(". ")[0][:200]
        raise ValueError(
            f"{path} is no readable flcog checkpoint (truncated, damaged, or not written by flcog): use another of its run ({reason})"
        ) from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise ValueError(f"{path} is no flcog checkpoint of format {FORMAT}: it was written by another program or version")
    return payload


def peek(path: Path) -> dict[str, Any]:
    """The contents of a checkpoint, whose tensors stay in the file. Empty if it cannot be read."""
    try:
        return read(path, mmap=True)
    except ValueError:
        return {}


def named(observers: Sequence[Callback]) -> Iterator[tuple[str, Callback]]:
    """Yield observers with the key of their state: their class, with a number if several have the same class."""
    seen: dict[str, int] = {}
    for observer in observers:
        name = type(observer).__name__
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name}-{seen[name]}"), observer


def check_same_model(path: Path, saved: Mapping[str, torch.Tensor], present: Mapping[str, torch.Tensor]) -> None:
    """Refuse a checkpoint whose tensors have other names or shapes than this model's."""
    differences = [f"{name} is only {'there' if name in saved else 'here'}" for name in sorted(saved.keys() ^ present.keys())]
    for name in sorted(saved.keys() & present.keys()):
        there, here = saved[name], present[name]
        if there.shape != here.shape:
            differences.append(f"{name} is {tuple(there.shape)} there, {tuple(here.shape)} here")
    if differences:
        more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
        raise ValueError(
            f"{path} holds another model: {'; '.join(differences[:3])}{more}. Use the model and the methods of the run that wrote it"
        )
