"""Clients' states on disk and in memory: what methods keep of each client between its rounds."""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.run import checkpoint

States = dict[str, Any]
"""A client's slots, by method."""

FILE_NAME = re.compile(r"round-\d{6,}-rank\d+(-\d+)?\.pt")
"""The names that files of states have."""

CACHE_BYTES = 2**30
"""Bytes of states on disk that stay in memory too: the most recently used."""


def _as_it_is(file: Path, client: int, slots: States) -> States:
    return slots


class SavedClientStates:
    """The slots of the clients that this process owns.

    On disk they are in one file for each round and process, so that a checkpoint costs what the cohort costs. A client's state is in
    the last file that was written with it, which others may have left: once fewer than half of a file's clients are still there,
    these move into the round's own file. So the folder holds at most twice what the states take, beside what kept checkpoints refer
    to. A file is never changed, and removed once no checkpoint refers to it.

    In memory are those that changed since the last checkpoint, and of the rest the last used; others are read when they are asked
    for. Without a folder all stay in memory.

    Args:
        directory: where the files are; None for none.
        rank: this process.
        receive: what is done with a state that was read: given its file, the client and the state, it returns the state.
    """

    def __init__(self, directory: Path | None, rank: int, receive: Callable[[Path, int, States], States] = _as_it_is) -> None:
        self.directory, self.rank, self._receive = directory, rank, receive
        self.owner: dict[int, int] = {}
        """The process on which each stateful client lives; the same on every process."""
        self.files: dict[int, str] = {}
        """The file that holds each client's state, of all processes' clients."""
        self.run_id = ""
        """The run's name, which its files bear: others are never removed."""
        self._own: set[str] = set()
        """Files that the run is known to have written."""
        self._foreign: set[str] = set()
        """Files in the same folder that it is known not to have written."""
        self._memory: dict[int, States] = {}
        """In memory, the most recently used last."""
        self._sizes: dict[int, int] = {}
        self._changed: set[int] = set()
        self._held: dict[str, int] = {}
        """How many clients there are in each file that this process has read or written."""
        self._before: dict[int, tuple[States | None, bool]] | None = None
        """What this round has replaced, and whether that was saved: for as long as the round may still be dropped."""

    @property
    def clients(self) -> list[int]:
        """Those of this process that have a state."""
        return sorted(client for client in self._memory.keys() | self.files.keys() if self._has(client))

    @property
    def slots(self) -> dict[int, States]:
        """All of this process's states at once, whatever memory that takes."""
        return {client: self.get(client) for client in self.clients}

    def get(self, client: int) -> States:
        """A client's state, empty where it has none yet."""
        if client not in self._memory:
            self.fetch([client])
        return self._memory.get(client, {})

    def fetch(self, clients: Sequence[int]) -> None:
        """Have these clients' states in memory, as far as they have any; those of one file are read at once."""
        for client, slots in self._read([client for client in clients if self._has(client) and client not in self._memory]):
            self._remember(client, slots)
        for client in clients:
            if client in self._memory:
                self._memory[client] = self._memory.pop(client)
        self._forget(keep=set(clients))

    def put(self, client: int, slots: States) -> None:
        """Keep a client's new state."""
        if self._before is not None:
            self._before.setdefault(client, (self._memory.get(client), client in self._changed))
        self._remember(client, slots)
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
                del self._memory[client], self._sizes[client]
            else:
                self._remember(client, slots)
            if not changed:
                self._changed.discard(client)
        self._before = None

    def save(self, round: int) -> dict[int, str]:
        """Write what changed since the last save; returns the clients written, with their file."""
        if not self._changed or self.directory is None:
            return {}
        moving = self._left_behind()
        states = {client: self._memory[client] for client in (*self._changed, *moving) if client in self._memory}
        states |= self._read([client for client in moving if client not in states])
        name = self._new_name(round)
        payload: dict[str, Any] = {"format": checkpoint.FORMAT, "run_id": self.run_id}
        payload["clients"] = {client: states[client] for client in sorted(states)}
        checkpoint.write(self.directory / name, payload)
        self._own.add(name)
        self._held[name] = len(states)
        self.files |= dict.fromkeys(states, name)
        self._changed.clear()
        self._forget(keep=set())
        return dict.fromkeys(sorted(states), name)

    def load(self, files: dict[int, str], world_size: int) -> None:
        """Take over a checkpoint's clients; ownership is dealt anew, so that the number of processes may change."""
        self.files = dict(files)
        self.owner = {client: position % world_size for position, client in enumerate(sorted(files))}
        for state in (self._memory, self._sizes, self._changed, self._held):
            state.clear()
        self._own |= set(files.values())
        # Every file once, so that damage is known before the first round, not when a client happens to be drawn.
        for clients in _by_file(self.clients, self.files).values():
            self.fetch(clients)

    def prune(self, keep: set[str]) -> None:
        """Remove files that this run wrote and that no checkpoint refers to. Everything else in the folder stays."""
        if self.directory is None or not self.directory.is_dir() or self.directory.is_symlink():
            return
        for path in self.directory.iterdir():
            if path.name not in keep and path.name not in self._foreign:
                if self._wrote(path):
                    path.unlink(missing_ok=True)
                else:
                    self._foreign.add(path.name)

    def _wrote(self, path: Path) -> bool:
        """Whether this run wrote a file, which its name, its checkpoints' lists or else the file itself says."""
        if not FILE_NAME.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            return False
        return path.name in self._own or checkpoint.run_of_states(path) == self.run_id

    def _has(self, client: int) -> bool:
        return client in self._memory or (client in self.files and self.owner.get(client, self.rank) == self.rank)

    def _read(self, clients: Sequence[int]) -> Iterator[tuple[int, States]]:
        """Clients' states from the disk, each file once."""
        for name, wanted in _by_file(clients, self.files).items():
            assert self.directory is not None
            path = self.directory / name
            stored = checkpoint.read_states(path, wanted, tested=name in self._held)
            self._held[name] = len(stored)
            for client in wanted:
                # Copies, so that the rest of the file is let go of.
                own = pytree.tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, stored[client])
                yield client, self._receive(path, client, own)

    def _left_behind(self) -> list[int]:
        """This process's clients in files of which less than half the states are still current: they move to a new file."""
        staying = {client: name for client, name in self.files.items() if client not in self._changed}
        left = _by_file(list(staying), staying)
        sparse = {name for name, clients in left.items() if 2 * len(clients) < self._held.get(name, 0)}
        return [client for client, name in staying.items() if name in sparse and self._has(client)]

    def _new_name(self, round: int) -> str:
        """One that no checkpoint refers to: a run that goes on from an earlier round leaves a later one's files alone."""
        assert self.directory is not None
        first = f"round-{round:06d}-rank{self.rank}"
        names = itertools.chain([f"{first}.pt"], (f"{first}-{number}.pt" for number in itertools.count(1)))
        return next(name for name in names if not (self.directory / name).exists())

    def _remember(self, client: int, slots: States) -> None:
        self._memory.pop(client, None)
        self._memory[client] = slots
        self._sizes[client] = sum(leaf.nbytes for leaf in pytree.tree_leaves(slots) if isinstance(leaf, Tensor))

    def _forget(self, keep: set[int]) -> None:
        """Drop the least recently used states from memory, as far as they are on disk."""
        excess = sum(self._sizes.values()) - CACHE_BYTES
        for client in list(self._memory) if excess > 0 and self.directory is not None else ():
            if client in self.files and client not in self._changed and client not in keep:
                excess -= self._sizes.pop(client)
                del self._memory[client]
                if excess <= 0:
                    return


def _by_file(clients: Sequence[int], files: dict[int, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for client in clients:
        found.setdefault(files[client], []).append(client)
    return found
