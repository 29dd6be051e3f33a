"""Reads a run's run.yaml and config.yaml, and checks them, so that a damaged file is an error of one line for every command."""

import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flcog.core.text import clipped
from flcog.core.yaml_files import load_yaml

Schema = Mapping[str, tuple[str, Callable[[Any], bool]]]
"""For each entry: its description, and a test. An entry may be absent or empty, because earlier versions wrote fewer."""

LARGEST = 10**15
"""Counts in these files are smaller."""
DEEPEST, MOST = 40, 100_000
"""Limits on nested values and on all values together. Aliases in YAML can expand a short file beyond any memory."""


def read_record(run: Path) -> dict[str, Any]:
    """Read a run's run.yaml. Returns an empty dictionary if there is none."""
    return _read(run / "run.yaml", RECORD)


def read_config(run: Path, name: str = "config.yaml") -> dict[str, Any]:
    """Read a run's config.yaml, or an earlier one of a resumed run. Returns an empty dictionary if there is none, as for a run that
    was started in Python.
    """
    return _read(run / name, CONFIG)


def _read(path: Path, schema: Schema) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = load_yaml(path)
        content = {} if content is None else content
        if not isinstance(content, dict):
            raise ValueError(f"{path} must be a mapping of names to values; it holds {_shown(content)}")
        _check_values(path, content)
        for name, (what, fits) in schema.items():
            value = content.get(name)
            if value is not None and not fits(value):
                raise ValueError(f"{path}: {name} must be {what}; it is {_shown(value)}")
            if value is None:
                content.pop(name, None)
    except ValueError as error:
        raise ValueError(f"{error}. Correct the file, or restore a copy of it") from None
    return content


def _check_values(path: Path, content: Any) -> None:
    """Refuse values that flcog never writes there: other types, values that contain themselves, and too many values."""
    open_values, count = [(content, 0)], 0
    while open_values:
        value, depth = open_values.pop()
        count += 1
        if depth > DEEPEST or count > MOST:
            raise ValueError(f"{path} holds too much: its values are nested too deeply, contain themselves, or are too many")
        if isinstance(value, dict):
            _check_class_path(path, value.get("class_path", ""))
            if unnamed := next((key for key in value if not isinstance(key, str)), None):
                raise ValueError(f"{path}: the name {_shown(unnamed)} must be text")
            open_values += [(part, depth + 1) for part in value.values()]
        elif isinstance(value, list):
            open_values += [(part, depth + 1) for part in value]
        elif isinstance(value, int) and abs(value) > LARGEST**2:
            raise ValueError(f"{path} holds a number of {value.bit_length()} bits")
        elif value is not None and not isinstance(value, str | int | float | datetime.date):
            raise ValueError(f"{path} holds a value of type {type(value).__name__}: {_shown(value)}")


def _check_class_path(path: Path, value: Any) -> None:
    """Refuse paths of modules that are programs: importing these runs them."""
    parts = value.split(".") if isinstance(value, str) else [""]
    if value != "" and (not all(map(str.isidentifier, parts)) or "__main__" in parts):
        raise ValueError(f"{path}: {_shown(value)} is no path of a class, such as package.module.Class")


def _shown(value: Any) -> str:
    return clipped(repr(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _is_trainer(value: Any) -> bool:
    return isinstance(value, dict) and _is_count(value.get("rounds", 1)) and _are_callbacks(value.get("callbacks") or [])


def _are_callbacks(value: Any) -> bool:
    return isinstance(value, list) and all(
        _is_text(one) or (isinstance(one, dict) and _is_text(one.get("class_path"))) for one in value
    )


RECORD: Schema = {
    "methods": ("a list of texts", _are_texts),
    "acting_rounds": ("two rounds", lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))),
    "model": ("a name", _is_text),
    "data": ("a name", _is_text),
    "num_parameters": ("a count", _is_count),
    "num_frozen": ("a count", _is_count),
    "num_clients": ("a count", _is_count),
    "experiment": ("a hash", _is_text),
    "init_from": ("the file of its initial weights and their digest", _is_mapping),
    "partition": ("a mapping of figures", _is_mapping),
    "seed": ("a whole number", _is_whole),
    "command": ("a command", _is_text),
    "git_commit": ("a commit", _is_text),
    "flcog_commit": ("a commit", _is_text),
    "packages": ("a mapping of versions", _is_mapping),
    "machine": ("a mapping of facts", _is_mapping),
}

CONFIG: Schema = {
    "trainer": ("a mapping of options, with a count of rounds and a list of callbacks", _is_trainer),
    "model": ("a mapping with a class_path", _is_mapping),
    "data": ("a mapping with a class_path", _is_mapping),
}
