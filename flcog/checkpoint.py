"""Checkpoints: tensors and primitives only, loaded with ``weights_only=True``, written aside and renamed."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from flcog.checkpoint_contents import check_run, check_states
from flcog.files import replacing
from flcog.hooks import Callback
from flcog.run_directory import RUN_REMEDY, short

FORMAT = 1


def write(path: Path, payload: dict[str, Any]) -> None:
    """Write ``payload`` so that a kill at any moment leaves the old file or the new one, never half of one."""
    with replacing(path, remedy=RUN_REMEDY) as file:
        torch.save(payload, file)


def read(path: Path) -> dict[str, Any]:
    """Load a run's checkpoint, without running anything that it might contain."""
    payload = _load(path)
    check_run(path, payload)
    return payload


def read_states(path: Path, clients: Sequence[int]) -> dict[int, dict[str, Any]]:
    """The states of these clients, by method, out of a file that holds them and perhaps others'."""
    payload = _load(path)
    check_states(path, payload)
    absent = [client for client in clients if client not in payload["clients"]]
    if absent:
        raise ValueError(
            f"{path} holds no state of client {absent[0]}, which a checkpoint beside it says: use another of its run"
        )
    return {client: payload["clients"][client] for client in clients}


def load_observer(path: Path, name: str, observer: Callback, state: dict[str, Any]) -> None:
    """Hand an observer its state of ``path``."""
    try:
        observer.load_state_dict(state)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path}: the state of {name} is none of its own ({error}); use another checkpoint of its run"
        ) from error


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(
            f"no checkpoint at {path}: give a file that a run wrote under checkpoints/, or 'last' for the newest run's"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load does not look at the checksums
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} in it does not match")
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # readers of archives and pickles raise nearly every kind of error on broken files
        reason = str(error).strip().partition(". ")[0].splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{path} is no readable flcog checkpoint (truncated, damaged, or not written by flcog): use another of its run ({reason})"
        ) from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise ValueError(f"{path} is no flcog checkpoint of format {FORMAT}: it was written by another program or version")
    return payload


def check_same_model(path: Path, saved: dict[str, torch.Tensor], present: dict[str, torch.Tensor]) -> None:
    """Refuse a checkpoint whose parameters are not this model's, saying which differ."""
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


def digests(exchanged: dict[str, Any]) -> dict[str, str]:
    """What fixes the data that methods exchanged before round 1, where they say so."""
    return {name: value.digest for name, value in exchanged.items() if hasattr(value, "digest")}


def check_same_exchange(path: Path, saved: dict[str, str], exchanged: dict[str, Any]) -> None:
    """Refuse to go on where the clients' data are no longer those that the run began with."""
    present = digests(exchanged)
    for name in sorted(saved.keys() | present.keys()):
        if saved.get(name) != present.get(name):
            folder = getattr(exchanged.get(name), "folder", None)
            where = "" if folder is None else f"what lies in {short(folder)} was changed or made anew, or "
            raise ValueError(
                f"{path} was written by a run in which {name} gave the clients other data: {where}a setting was changed; "
                "put that back, or start a new run"
            )


class ClientStates:
    """Clients' slots: in memory, and on disk in one file per round and process, so that a checkpoint costs what the cohort costs.

    A client's state is read from the file of the last round it took part in; files that no checkpoint refers to are removed.
    """

    def __init__(self, directory: Path | None, rank: int) -> None:
        self.directory, self.rank = directory, rank
        self.slots: dict[int, dict[str, Any]] = {}
        """State of the clients this process owns, by client and method."""
        self.owner: dict[int, int] = {}
        """The process on which each stateful client lives; the same on every process."""
        self.files: dict[int, str] = {}
        """The file that holds each client's state; known to the first process for all clients."""
        self._changed: set[int] = set()
        self._before: dict[int, tuple[dict[str, Any] | None, bool]] | None = None
        """What this round has replaced, and whether that was saved: for as long as the round may still be dropped."""

    def path(self, client: int) -> Path:
        """The file that holds its state."""
        assert self.directory is not None
        return self.directory / self.files[client]

    def put(self, client: int, slots: dict[str, Any]) -> None:
        if self._before is not None:
            self._before.setdefault(client, (self.slots.get(client), client in self._changed))
        self.slots[client] = slots
        self._changed.add(client)

    @contextmanager
    def noting_changes(self) -> Iterator[None]:
        """What is put meanwhile can be undone, if an exception leaves this block."""
        self._before = {}
        yield
        self._before = None

    def undo(self) -> None:
        """Take back what was put while changes were noted."""
        for client, (slots, changed) in (self._before or {}).items():
            if slots is None:
                del self.slots[client]
            else:
                self.slots[client] = slots
            if not changed:
                self._changed.discard(client)
        self._before = None

    def save(self, round: int) -> dict[int, str]:
        """Write what changed since the last save; returns the clients written, with their file."""
        if not self._changed or self.directory is None:
            return {}
        name = f"round-{round:06d}-rank{self.rank}.pt"
        write(self.directory / name, {"format": FORMAT, "clients": {k: self.slots[k] for k in sorted(self._changed)}})
        written = dict.fromkeys(sorted(self._changed), name)
        self._changed.clear()
        return written

    def load(self, files: dict[int, str], world_size: int) -> None:
        """Read the clients that this process will own; ownership is dealt anew, so the number of processes may change."""
        self.files = dict(files)
        self.owner = {client: position % world_size for position, client in enumerate(sorted(files))}
        self._changed.clear()
        self.slots = {}
        mine: dict[str, list[int]] = {}
        for client, name in files.items():
            if self.owner[client] == self.rank:
                mine.setdefault(name, []).append(client)
        for name, clients in mine.items():
            assert self.directory is not None
            self.slots |= read_states(self.directory / name, clients)

    def prune(self, keep: set[str]) -> None:
        """Remove files that no checkpoint refers to."""
        if self.directory is not None and self.directory.is_dir():
            for path in self.directory.iterdir():
                if path.name not in keep:
                    path.unlink(missing_ok=True)
