"""Checks every entry of a checkpoint before it is used, so that a damaged file gives an error in one line."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
    _check_entries(path, payload, {"params": RUN["params"]})


def _check_entries(path: Path, payload: dict[str, Any], entries: "Entries") -> None:
    for name, (what, fits) in entries.items():
        if name not in payload and name in LATER:
            continue
        if name not in payload or not fits(payload[name]):
            got = _kind_of(payload[name]) if name in payload else "nothing"
            raise ValueError(f"{path}: {name} must be {what}; it holds {got}: {REMEDY}")


def check_alike(path: Path, what: str, saved: Any, expected: Any) -> None:
    """Refuse state whose structure, shapes or types differ from the initial state of this run's methods, and state that is not
    finite.

    State that is empty at first (a list, a dictionary, None) may contain anything finite later. A number that is infinite at
    first may stay infinite, such as a loss that was not measured yet.
    """
    fault = _difference(saved, expected, what)
    if fault is not None:
        raise ValueError(f"{path}: {fault}: use the methods and settings of the run that wrote it, or another of its checkpoints")
    broken = _not_finite(saved, expected, what)
    if broken is not None:
        raise ValueError(f"{path}: {broken} has NaN or infinite values: {REMEDY}")


def _difference(saved: Any, expected: Any, what: str) -> str | None:
    if expected is None or (isinstance(expected, dict | list | tuple) and not expected):
        return None if _is_state(saved) else f"{what} is {_kind_of(saved)}"
    if isinstance(expected, Tensor):
        return None if _is_tensor_like(saved, expected) else f"{what} is {_kind_of(saved)} there, {_kind_of(expected)} here"
    if isinstance(expected, dict):
        if not isinstance(saved, dict) or saved.keys() != expected.keys():
            return f"{what} is {_kind_of(saved)} there, {_kind_of(expected)} here"
        return next(filter(None, (_difference(saved[k], expected[k], f"{what}[{k!r}]") for k in expected)), None)
    if isinstance(expected, list | tuple):
        if not isinstance(saved, list | tuple) or len(saved) != len(expected):
            return f"{what} is {_kind_of(saved)} there, {_kind_of(expected)} here"
        return next(filter(None, (_difference(saved[i], e, f"{what}[{i}]") for i, e in enumerate(expected))), None)
    return None if type(saved) is type(expected) else f"{what} is {_kind_of(saved)} there, {_kind_of(expected)} here"


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


def _is_tensor_like(saved: Any, expected: Tensor) -> bool:
    return _is_tensor(saved) and saved.shape == expected.shape and saved.is_floating_point() == expected.is_floating_point()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta and not value.is_quantized


def _is_state(value: Any) -> bool:
    """Return whether a value consists of tensors and primitives."""
    if isinstance(value, dict):
        return all(map(_is_state, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_state, value))
    return value is None or isinstance(value, bool | int | float | str) or _is_tensor(value)


def _kind_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    text = f"{{{', '.join(map(repr, value))}}}" if isinstance(value, dict) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_file_name(value: Any) -> bool:
    """Return whether a name is a file directly in the folder, so that no file outside a run's directory is read or removed."""
    return type(value) is str and value not in ("", ".", "..") and not set(value) & set("/\\\0:")


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _by(key: Callable[[Any], bool], fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(key(name) and fits(part) for name, part in value.items())


def _is_ledger(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"up", "down"} and all(map(_by(_is_text, _is_count), value.values()))


def _is_experiment(value: Any) -> bool:
    """Return whether a value is a result of :func:`flcog.run.experiment.describe`, or empty, as for rounds driven by hand."""
    settings = _by(_is_text, _is_state)
    parts: dict[str, Callable[[Any], bool]] = {
        "clients": _is_count,
        "partition": _is_text,
        "trained_on": _is_text,
        "targets": _is_text,
        "layers": _by(_is_text, _is_text),
        "settings": settings,
        "objects": settings,
        "config": lambda part: part is None or settings(part),
    }
    return value == {} or (isinstance(value, dict) and value.keys() == parts.keys() and all(parts[n](value[n]) for n in parts))


def _is_traffic(value: Any) -> bool:
    """Whether a value is the state of :class:`flcog.server.traffic.Traffic`, whose flights started from its broadcasts."""
    if not isinstance(value, dict) or value.keys() != {"flights", "broadcasts", "upload"}:
        return False
    broadcasts, upload = value["broadcasts"], value["upload"]
    return (
        _by(_is_count, _is_broadcast)(broadcasts)
        and _list_of(_is_flight)(value["flights"])
        and all(flight[1] in broadcasts for flight in value["flights"])
        and (upload is None or (isinstance(upload, list) and list(map(type, upload)) == [int, dict]))
    )


def _is_broadcast(value: Any) -> bool:
    tensors, numbers = _by(_is_text, _is_tensor), _list_of(lambda number: isinstance(number, int | float))
    fits = {"params": tensors, "buffers": tensors, "server": _by(_is_text, _is_state), "rates": numbers, "optimisation": numbers}
    return isinstance(value, dict) and value.keys() == fits.keys() and all(fits[name](value[name]) for name in fits)


def _is_flight(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 5:
        return False
    return all(map(_is_count, value[:3])) and all(type(time) is float and 0 <= time < math.inf for time in value[3:])


Entries = dict[str, tuple[str, Callable[[Any], bool]]]


def _is_choice(value: Any) -> bool:
    """Whether this is None or an executor's choice as the session stores it: [name, clients at once, compiled or how]."""
    if value is None:
        return True
    return (
        isinstance(value, list)
        and len(value) in (2, 3)
        and _is_text(value[0])
        and _is_count(value[1])
        and (len(value) == 2 or isinstance(value[2], bool | str))
    )


RUN: Entries = {
    "round": ("a number of rounds done", _is_count),
    "seconds": ("simulated seconds, at least 0", lambda value: type(value) is float and 0 <= value < math.inf),
    "traffic": ("the clients in flight", _is_traffic),
    "seed": ("a whole number", _is_whole),
    "params": ("tensors by name", _by(_is_text, _is_tensor)),
    "buffers": ("tensors by name", _by(_is_text, _is_tensor)),
    "frozen": ("the name of a file, or empty", lambda value: value == "" or _is_file_name(value)),
    "methods": ("a list of names", _list_of(_is_text)),
    "servers": ("each method's state", _by(_is_text, _is_state)),
    "reported": ("lists of clients by method", _by(_is_text, _list_of(_is_count))),
    "messages": ("first-contact messages by method and client", _by(_is_text, _by(_is_count, _is_state))),
    "ledger": ("bytes up and down by content", _is_ledger),
    "exchanged": ("digests by method", _by(_is_text, _is_text)),
    "experiment": ("what the run was", _is_experiment),
    "executor": ("an executor's name, its number of clients at once and whether it compiles, or None", _is_choice),
    "chosen_for": ("the executor and the kind of device that it was chosen for", _list_of(_is_text)),
    "observers": ("each observer's state", _by(_is_text, _by(_is_text, _is_state))),
    "until": ("each method's work so far", _by(_is_text, _is_state)),
    "branch": ("the run that it branched from, or None", lambda value: value is None or _by(_is_text, _is_state)(value)),
    "tracker_run": ("a tracker's name of the run, or None", lambda value: value is None or _is_text(value)),
    "run_id": ("the run's name", _is_text),
    "resumable": ("True or False", lambda value: isinstance(value, bool)),
}
LATER = {
    "traffic",
    "executor",
    "chosen_for",
    "seconds",
    "messages",
    "exchanged",
    "experiment",
    "frozen",
    "until",
    "branch",
    "run_id",
}
"""Entries that the first checkpoints lacked."""
CLIENTS: Entries = {"clients": ("names of files in the folder clients, by client", _by(_is_count, _is_file_name))}
STATES: Entries = {"clients": ("clients' states by method", _by(_is_count, _by(_is_text, _is_state)))}
