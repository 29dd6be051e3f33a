"""Checkpoints: tensors and primitives only, loaded with ``weights_only=True``, written aside and renamed."""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from flcog.core.files import RUN_REMEDY, replacing, short
from flcog.core.text import first_line
from flcog.data import Exchange
from flcog.method import Callback
from flcog.run.checkpoint_contents import check_frozen, check_run, check_states

FORMAT = 1


def write(path: Path, payload: dict[str, Any]) -> None:
    """Write ``payload`` so that a kill at any moment leaves the old file or the new one, never half of one.

    Tensors are copied to the CPU first. Otherwise ``torch.load`` would need the same GPU by default.
    """
    with replacing(path, remedy=RUN_REMEDY) as file:
        torch.save(_on_cpu(payload) if torch.accelerator.is_available() else payload, file)


def _on_cpu(payload: dict[str, Any]) -> dict[str, Any]:
    """Copy the tensors to the CPU. A tensor with several names stays one tensor."""
    copies: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.cpu()
        return copies[id(tensor)]

    return pytree.tree_map_only(torch.Tensor, copy, payload)


def read(path: Path) -> dict[str, Any]:
    """Load a run's checkpoint without executing code that it might contain."""
    payload = _load(path)
    check_run(path, payload)
    return payload


def params_to_evaluate(saved: Mapping[str, Any], methods: list[str]) -> dict[str, torch.Tensor]:
    """The server's parameters in a checkpoint, or, without the methods of its run, those that these methods evaluated.

    Args:
        saved: the contents of the checkpoint.
        methods: the methods of the evaluation.
    """
    return saved["params"] if saved["methods"] == methods else saved["params"] | saved.get("state_dict", {})


def read_states(path: Path, clients: Sequence[int], tested: bool) -> dict[int, dict[str, Any]]:
    """Read the clients' states in a file, by client and method.

    The tensors stay in the file until they are used.

    Args:
        path: the file.
        clients: the clients that it must contain.
        tested: whether this process wrote or read the file before, so that its checksums are not checked again.
    """
    payload = _load(path, tested, mmap=True)
    check_states(path, payload)
    absent = [client for client in clients if client not in payload["clients"]]
    if absent:
        raise ValueError(
            f"{path} holds no state of client {absent[0]}, although a checkpoint beside it lists one: use another of its run"
        )
    return payload["clients"]


def read_frozen(path: Path, checkpoint: Path) -> tuple[dict[str, torch.Tensor], str]:
    """Read the frozen weights from the file that a checkpoint names, and the digest of those that are loaded by a decoder's name."""
    if not path.is_file():
        raise ValueError(
            f"{checkpoint} was trained with other frozen weights than the model's: use those weights, or restore {path}"
        )
    payload = _load(path)
    check_frozen(path, payload)
    return dict(payload["params"]), payload.get("loaded", "")


def named(observers: Sequence[Callback]) -> Iterator[tuple[str, Callback]]:
    """Yield observers with the key of their state: their class, with a number if several have the same class."""
    seen: dict[str, int] = {}
    for observer in observers:
        name = type(observer).__name__
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name}-{seen[name]}"), observer


def load_observer(path: Path, name: str, observer: Callback, state: dict[str, Any]) -> None:
    """Give an observer its state from the checkpoint at ``path``."""
    try:
        observer.load_state_dict(state)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: the state of {name} does not fit ({error}); use another checkpoint of its run") from error


def _load(path: Path, tested: bool = False, mmap: bool = False) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(
            f"no checkpoint at {path}: give a file that a run wrote under checkpoints/, or 'last' for the newest run's"
        )
    try:
        if not tested:
            _test(path)
        payload = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # readers of archives and pickles raise nearly every kind of error on broken files
        reason = first_line(error).partition(". ")[0][:200]
        raise ValueError(
            f"{path} is no readable flcog checkpoint (truncated, damaged, or not written by flcog): use another of its run ({reason})"
        ) from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise ValueError(f"{path} is no flcog checkpoint of format {FORMAT}: it was written by another program or version")
    return payload


def _test(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()  # torch.load does not check the checksums
        folders = [entry.filename for entry in archive.infolist() if entry.external_attr & 0x10]
    if folders:  # torch would not read such entries, and use uninitialised memory instead
        raise ValueError(f"{folders[0]} in it is marked as a folder")
    if damaged is not None:
        raise ValueError(f"the checksum of {damaged} in it does not match")


def run_of_states(path: Path) -> str | None:
    """Return the name of the run that wrote a file of clients' states. None if another program or an early flcog wrote it."""
    payload = peek(path)
    return payload.get("run_id") if payload.get("format") == FORMAT and "clients" in payload else None


def other_methods(path: Path, names: list[str]) -> str | None:
    """Say how the methods of a checkpoint's run differ from these.

    None if they are the same, or if the checkpoint cannot be read, which will be reported when it is loaded.
    """
    now, saved = as_given(names), as_given(peek(path).get("methods", names))
    absent, further = [name for name in now if name not in saved], [name for name in saved if name not in now]
    parts = [f"has no {' and no '.join(absent)}"] * bool(absent)
    parts += [f"has {' and '.join(further)}, which this one lacks"] * bool(further)
    if not parts and saved != now:
        return f"lists them as {', '.join(saved)}, and this one as {', '.join(now)}"
    return ", and ".join(parts) or None


def as_given(methods: Sequence[str]) -> list[str]:
    """The names of methods as users give them: clipping is an option of the trainer."""
    return ["gradient_clip_val" if name == "GradientClip" else name for name in methods]


def peek(path: Path) -> dict[str, Any]:
    """The contents of a checkpoint, whose tensors stay in the file. Empty if it cannot be read."""
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True, mmap=True))
    except Exception:  # readers of archives and pickles raise nearly every kind of error on broken files
        return {}


def check_same_model(path: Path, saved: dict[str, torch.Tensor], present: dict[str, torch.Tensor]) -> None:
    """Refuse a checkpoint whose parameters differ from this model's, and name the differences."""
    missing = sorted(present.keys() - saved.keys())
    extra = sorted(saved.keys() - present.keys())
    shapes = [
        f"{name} is {tuple(saved[name].shape)} there, {tuple(present[name].shape)} here"
        for name in sorted(saved.keys() & present.keys())
        if saved[name].shape != present[name].shape
    ]
    shapes += [
        f"{name} is {saved[name].dtype} there, {present[name].dtype} here"
        for name in sorted(saved.keys() & present.keys())
        if saved[name].is_floating_point() != present[name].is_floating_point()
    ]
    differences = [*(f"{n} is only here" for n in missing), *(f"{n} is only there" for n in extra), *shapes]
    if differences:
        more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
        raise ValueError(
            f"{path} holds another model: {'; '.join(differences[:3])}{more}. Use the model and the methods of the run that wrote it"
        )


def digests(exchanges: Mapping[str, Exchange]) -> dict[str, str]:
    """Return digests of the data that methods exchanged before round 1, for methods that have one."""
    return {name: exchange.digest for name, exchange in exchanges.items() if exchange.digest is not None}


def check_same_exchange(path: Path, saved: Mapping[str, str], exchanges: Mapping[str, Exchange]) -> None:
    """Refuse to resume if the clients' data have changed since the run began."""
    present = digests(exchanges)
    for name in sorted(saved.keys() | present.keys()):
        if saved.get(name) != present.get(name):
            folder = exchanges[name].folder if name in exchanges else None
            where = "" if folder is None else f"the files in {short(folder)} were changed or replaced, or "
            raise ValueError(
                f"{path} was written by a run in which {name} gave the clients other data: {where}a setting was changed; "
                "restore them, or start a new run"
            )
