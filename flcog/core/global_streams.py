"""Shared settings that are restored, and the global random streams of torch, NumPy and Python.

Users' networks and transforms may draw from these streams, flcog never does.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_CPU = torch.device("cpu")


@contextmanager
def kept(thing: Any, *names: str) -> Iterator[None]:
    """Restore these attributes on exit."""
    before = {name: getattr(thing, name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)


class Streams(NamedTuple):
    """The states of the global random streams."""

    torch: list[Tensor]
    numpy: dict[str, Any]
    python: tuple[Any, ...]


def streams(device: torch.device = _CPU) -> Streams:
    """Return the states of the global random streams."""
    own = [] if device.type == "cpu" else [torch.get_device_module(device).get_rng_state()]
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002 -- the legacy generator is the global one
    return Streams([torch.default_generator.get_state(), *own], numpy, random.getstate())


def moved(before: Streams, device: torch.device = _CPU) -> list[str]:
    """Return the names of the libraries whose global streams were used since."""
    now = streams(device)
    same = {
        "torch": all(map(torch.equal, now.torch, before.torch)),
        "NumPy": _of_numpy(now) == _of_numpy(before),
        "Python": now.python == before.python,
    }
    return [name for name, is_same in same.items() if not is_same]


def draws_from(libraries: list[str]) -> str:
    """Say that something draws from the global streams of these libraries, and how to avoid it; an empty string for none."""
    names = " and ".join(f"{name}'s global stream" for name in libraries)
    return names and f"draws from {names}" + " (flcog.models.Dropout does not)" * (libraries == ["torch"])


def seed_streams(seed: int, device: torch.device = _CPU) -> None:
    """Seed the global streams. They continue from there."""
    torch.default_generator.manual_seed(seed & (2**63 - 1))
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed & (2**63 - 1))
    np.random.seed(seed & (2**32 - 1))  # noqa: NPY002 -- as above
    random.seed(seed)


@contextmanager
def kept_streams(device: torch.device = _CPU) -> Iterator[Streams]:
    """Restore the states of the global streams on exit."""
    before = streams(device)
    try:
        yield before
    finally:
        torch.default_generator.set_state(before.torch[0])
        if device.type != "cpu":
            torch.get_device_module(device).set_rng_state(before.torch[1])
        np.random.set_state(before.numpy)  # noqa: NPY002 -- as above
        random.setstate(before.python)


@contextmanager
def seeded(key: int, device: torch.device = _CPU) -> Iterator[None]:
    """Seed the global streams from ``key``, and restore their states on exit."""
    with kept_streams(device):
        seed_streams(key, device)
        yield


def _of_numpy(states: Streams) -> tuple[Any, ...]:
    state = states.numpy
    return state["bit_generator"], state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]
