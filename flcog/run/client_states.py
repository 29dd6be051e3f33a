"""Clients' states on disk and in memory, which methods keep between rounds."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.run import checkpoint

States = dict[str, Any]

CACHE_BYTES = 2**30
"""Bytes of states on disk that stay in memory too: the most recently used."""


class SavedClientStates:
    """The states of the clients that this process owns.

    Each round and process writes one file with the states that have changed, so the size of a checkpoint depends on the cohort.
    When fewer than half of a file's states are current, these move to the next file. So the folder is at most twice as large as
    all states, apart from states that kept checkpoints need. Files never change, and are removed when no checkpoint refers to
    them. Memory holds the states that have changed since the last checkpoint, and the most recently used ones. Others are read on
    demand. Without a folder all states stay in memory.
    """

    def __init__(self, directory: Path | None, rank: int) -> None:
        self.directory, self.rank = directory, rank
        self.owner: dict[int, int] = {}
        """The process that owns each stateful client. The same on every process."""
        self.files: dict[int, str] = {}
        """The file of each client's state, for the clients of all processes."""
        self._memory: dict[int, States] = {}
        """In memory, the most recently used last."""
        self._sizes: dict[int, int] = {}
        self._changed: set[int] = set()
        self._held: dict[str, int] = {}
        """The number of clients in each file that this process has read or written."""

    @property
    def clients(self) -> list[int]:
        return sorted(client for client in self._memory.keys() | self.files.keys() if self._has(client))

    @property
    def by_client(self) -> dict[int, States]:
        """All states of this process at once, which may need much memory."""
        return {client: self.get(client) for client in self.clients}

    def get(self, client: int) -> States:
        """Return a client's state, which is empty at first."""
        if client not in self._memory:
            self.fetch([client])
        return self._memory.get(client, {})

    def fetch(self, clients: Sequence[int]) -> None:
        """Read these clients' states into memory. States in the same file are read together."""
        for client, states in self._read([client for client in clients if self._has(client) and client not in self._memory]):
            self._remember(client, states)
        for client in clients:
            if client in self._memory:
                self._memory[client] = self._memory.pop(client)
        self._forget(keep=set(clients))

    def put(self, client: int, states: States) -> None:
        self._remember(client, states)
        self._changed.add(client)

    def save(self, round: int) -> dict[int, str]:
        """Write the states that have changed since the last save. Returns the written clients with their file."""
        if not self._changed or self.directory is None:
            return {}
        moving = self._left_behind()
        states = {client: self._memory[client] for client in (*self._changed, *moving) if client in self._memory}
        states |= self._read([client for client in moving if client not in states])
        name = self._new_name(round)
        states = dict(sorted(states.items()))
        checkpoint.write(self.directory / name, {"format": checkpoint.FORMAT, "clients": states})
        self._held[name], written = len(states), dict.fromkeys(states, name)
        self.files |= written
        self._changed.clear()
        self._forget(keep=set())
        return written

    def load(self, files: dict[int, str], world_size: int) -> None:
        """Load a checkpoint's clients, and distribute them over the processes, whose number may have changed."""
        self.files = dict(files)
        self.owner = {client: position % world_size for position, client in enumerate(sorted(files))}
        for state in (self._memory, self._sizes, self._changed, self._held):
            state.clear()
        # Read every file now, so that damage is reported before the first round and not when a client is sampled.
        for clients in _by_file(self.clients, self.files).values():
            self.fetch(clients)

    def prune(self, keep: set[str]) -> None:
        """Remove files of states that no checkpoint refers to."""
        for path in self.directory.glob("round-*-rank*.pt") if self.directory is not None else ():
            if path.name not in keep:
                path.unlink(missing_ok=True)

    def _has(self, client: int) -> bool:
        return client in self._memory or (client in self.files and self.owner.get(client, self.rank) == self.rank)

    def _read(self, clients: Sequence[int]) -> Iterator[tuple[int, States]]:
        """Read clients' states from the disk, each file once. Copies, so that the rest of the file can be freed."""
        for name, wanted in _by_file(clients, self.files).items():
            assert self.directory is not None
            stored = checkpoint.read(self.directory / name, mmap=True)["clients"]
            self._held[name] = len(stored)
            for client in wanted:
                yield client, pytree.tree_map_only(Tensor, torch.clone, stored[client])

    def _left_behind(self) -> list[int]:
        """Return this process's clients in files with less than half of their states current. They move to a new file."""
        staying = {client: name for client, name in self.files.items() if client not in self._changed}
        left = _by_file(list(staying), staying)
        sparse = {name for name, clients in left.items() if 2 * len(clients) < self._held.get(name, 0)}
        return [client for client, name in staying.items() if name in sparse and self._has(client)]

    def _new_name(self, round: int) -> str:
        """Return a new file name. A run that resumes from an earlier round does not overwrite later files."""
        assert self.directory is not None
        first = f"round-{round:06d}-rank{self.rank}"
        names = itertools.chain([f"{first}.pt"], (f"{first}-{number}.pt" for number in itertools.count(1)))
        return next(name for name in names if not (self.directory / name).exists())

    def _remember(self, client: int, states: States) -> None:
        self._memory.pop(client, None)
        self._memory[client] = states
        self._sizes[client] = sum(leaf.nbytes for leaf in pytree.tree_leaves(states) if isinstance(leaf, Tensor))

    def _forget(self, keep: set[int]) -> None:
        """Remove the least recently used states from memory if they are on disk."""
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
