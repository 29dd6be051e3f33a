"""Checks every entry of a checkpoint before it is used, so that a damaged file gives an error in one line."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from flcog.core.states import difference, is_state, is_tensor, kind_of

REMEDY = "the file is damaged or was changed; use another checkpoint of its run"
LARGEST = 2**53
"""The largest count that a checkpoint may hold; beyond it a float no longer holds every whole number."""


def check_run(path: Path, payload: dict[str, Any]) -> None:
    """Refuse a run's checkpoint if an entry is missing or has another type, or if a parameter or buffer is NaN or infinite."""
    _check_entries(path, payload, RUN | (CLIENTS if payload.get("resumable") is True else {}))
    for part, what in (("params", "parameter"), ("buffers", "buffer")):
        for name, value in payload[part].items():
            if not _is_finite(value):
                raise ValueError(f"{path}: {what} {name} has NaN or infinite values: {REMEDY}")


def check_states(path: Path, payload: dict[str, Any]) -> None:
    """Refuse a file of clients' states with other contents."""
    _check_entries(path, payload, STATES)


def check_frozen(path: Path, payload: dict[str, Any]) -> None:
    """Refuse a file of frozen weights with other contents."""
    _check_entries(path, payload, {"params": RUN["params"], "loaded": ("a text", _is_text)})


def _check_entries(path: Path, payload: dict[str, Any], entries: "Entries") -> None:
    for name, (what, fits) in entries.items():
        if name not in payload and name in LATER:
            continue
        if name not in payload or not fits(payload[name]):
            got = kind_of(payload[name]) if name in payload else "nothing"
            raise ValueError(f"{path}: {name} must be {what}; it holds {got}: {REMEDY}")


def check_alike(path: Path, what: str, saved: Any, expected: Any) -> None:
    """Refuse state whose structure, shapes or types differ from the initial state of this run's methods, and state that is not
    finite.

    State that is empty at first (a list, a dictionary, None) may contain anything finite later. A number that is infinite at
    first may stay infinite, such as a loss that was not measured yet.
    """
    if (fault := difference(saved, expected, what)) is not None:
        place, there, here = fault
        raise ValueError(
            f"{path}: {place} is {there} there, {here} here: use the methods and settings of the run that wrote it, or "
            "another of its checkpoints"
        )
    broken = _not_finite(saved, expected, what)
    if broken is not None:
        raise ValueError(f"{path}: {broken} has NaN or infinite values: {REMEDY}")


def _not_finite(saved: Any, expected: Any, what: str) -> str | None:
    """Find a number that is NaN or infinite although its initial value was finite or empty."""
    if isinstance(saved, dict | list | tuple):
        parts = saved.items() if isinstance(saved, dict) else enumerate(saved)
        inside = ((part, expected[key] if expected else None, f"{what}[{key!r}]") for key, part in parts)
        return next(filter(None, (_not_finite(*part) for part in inside)), None)
    return what if not _is_finite(saved) and _is_finite(expected) else None


def _is_finite(value: Any) -> bool:
    return (
        bool(torch.isfinite(value).all()) if isinstance(value, Tensor) else not isinstance(value, float) or math.isfinite(value)
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_file_name(value: Any) -> bool:
    """Return whether a name is a file directly in the folder, so that no file outside a run's directory is read or removed."""
    return type(value) is str and value not in ("", ".", "..") and not set(value) & set("/\\\0:")


def _is_time(value: Any) -> bool:
    return type(value) is float and 0 <= value < math.inf


def _is_flight(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 5 and all(map(_is_count, value[:3])) and all(map(_is_time, value[3:]))


def _is_upload(value: Any) -> bool:
    return isinstance(value, list) and list(map(type, value)) == [int, dict]


def _is_choice(value: Any) -> bool:
    """Whether this is an executor's choice as the session stores it: [name, clients at once, compiled or how]."""
    if not isinstance(value, list) or len(value) not in (2, 3):
        return False
    return _is_text(value[0]) and _is_count(value[1]) and (len(value) == 2 or isinstance(value[2], bool | str))


Fits = Callable[[Any], bool]
"""A test for values."""


def _or_none(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def _list_of(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _by(key: Fits, fits: Fits) -> Fits:
    return lambda value: isinstance(value, dict) and all(key(name) and fits(part) for name, part in value.items())


def _with(parts: Mapping[str, Fits], optional: Mapping[str, Fits] = MappingProxyType({})) -> Fits:
    """A test for dicts with exactly these keys, each with its own test, and with optional ones, which earlier versions did not write."""
    every = {**parts, **optional}
    return lambda value: (
        isinstance(value, dict)
        and parts.keys() <= value.keys() <= every.keys()
        and all(every[name](part) for name, part in value.items())
    )


TENSORS, STATE, COUNTS = _by(_is_text, is_tensor), _by(_is_text, is_state), _by(_is_text, _is_count)
NUMBERS = _list_of(lambda number: isinstance(number, int | float))

EXPERIMENT = _with(
    {
        "clients": _is_count,
        "partition": _is_text,
        "trained_on": _is_text,
        "targets": _is_text,
        "layers": _by(_is_text, _is_text),
        "settings": STATE,
        "objects": STATE,
        "config": _or_none(STATE),
    },
    optional={
        "code": _by(_is_text, _by(_is_text, _is_text)),
        "inputs": _by(_is_text, _is_text),
        "init_from": _with({"file": _is_text, "weights": _is_text}),
    },
)
"""A test for the result of :func:`flcog.run.experiment.describe`."""

BROADCAST = _with({"params": TENSORS, "buffers": TENSORS, "server": STATE, "rates": NUMBERS, "optimisation": NUMBERS})
TRAFFIC = _with({"flights": _list_of(_is_flight), "broadcasts": _by(_is_count, BROADCAST), "upload": _or_none(_is_upload)})


def _is_traffic(value: Any) -> bool:
    """Whether a value is the state of :class:`flcog.server.traffic.Traffic`, whose flights started from its broadcasts."""
    return TRAFFIC(value) and all(flight[1] in value["broadcasts"] for flight in value["flights"])


Entries = dict[str, tuple[str, Fits]]

RUN: Entries = {
    "round": ("a number of rounds done", _is_count),
    "seconds": ("simulated seconds, at least 0", _is_time),
    "steps": ("a number of optimiser steps", _is_count),
    "rates": ("learning rates", NUMBERS),
    "traffic": ("the clients in flight", _is_traffic),
    "seed": ("a whole number", _is_whole),
    "params": ("tensors by name", TENSORS),
    "buffers": ("tensors by name", TENSORS),
    "frozen": ("the name of a file, or empty", lambda value: value == "" or _is_file_name(value)),
    "methods": ("a list of names", _list_of(_is_text)),
    "servers": ("each method's state", STATE),
    "reported": ("lists of clients by method", _by(_is_text, _list_of(_is_count))),
    "messages": ("first-contact messages by method and client", _by(_is_text, _by(_is_count, is_state))),
    "ledger": ("bytes up and down by content", _with({"up": COUNTS, "down": COUNTS})),
    "exchanged": ("digests by method", _by(_is_text, _is_text)),
    "experiment": ("what the run was", EXPERIMENT),
    "executor": ("an executor's name, its number of clients at once and whether it compiles, or None", _or_none(_is_choice)),
    "chosen_for": ("the executor and the kind of device that it was chosen for", _list_of(_is_text)),
    "observers": ("each observer's state", _by(_is_text, STATE)),
    "tracker_run": ("a tracker's name of the run, or None", _or_none(_is_text)),
    "run_id": ("the run's name", _is_text),
    "resumable": ("True or False", lambda value: isinstance(value, bool)),
}
LATER = {"steps", "rates", "loaded", "traffic", "seconds", "messages", "run_id"}
"""Entries that older checkpoints lack."""
CLIENTS: Entries = {"clients": ("names of files in the folder clients, by client", _by(_is_count, _is_file_name))}
STATES: Entries = {"clients": ("clients' states by method", _by(_is_count, STATE))}
