"""Resolves a cell's command line to a full configuration in this process, before its run is started."""

import contextlib
import copy
import functools
import hashlib
import io
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from lightning.pytorch.cli import LightningArgumentParser

import flcog
from flcog.commands.command_cli import CommandCLI
from flcog.commands.compare.given_options import SPLIT_SEED
from flcog.commands.compare.plan import Cell
from flcog.commands.refusals import refusal
from flcog.core.users_hooks import PACKAGES
from flcog.core.weight_files import digest_of, read_weights
from flcog.method import Callback

Config = Mapping[str, Any]

Settings = Mapping[str, Any]
"""Settings by their dotted names."""

WHERE_IT_LIES = ("default_root_dir", "logger", "resume_changed")
"""Options of the trainer without influence on the results."""
WATCHES = ("Checkpoint", "ProgressBar", "PartitionChart", "StopAfter", "Summary")
"""Callbacks that add no columns to metrics.csv."""
NO_SETTINGS = {
    *("default_root_dir", "data_dir", "cache_dir", "directory", "download", "logger", "resume_changed", "profiler", "max_time"),
    *("accelerator", "strategy", "devices", "num_nodes", "processes_per_device", "num_workers", "detect_anomaly"),
    *("enable_progress_bar", "enable_checkpointing", "enable_model_summary"),
}
"""Last names of options that change no result: paths, devices, processes, threads and trackers."""


class _Reader(CommandCLI):
    """Parses a command line of ``flcog fit`` without instantiating anything."""

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        super().add_core_arguments_to_parser(parser)
        parser.add_argument("--init_from", type=str | None)

    def instantiate_classes(self) -> None:
        self._dump_config()

    def _set_seed(self) -> None:
        """Draw nothing."""


def resolve(cells: Iterable[Cell]) -> dict[str, Config]:
    """The cells' configurations by name. Cells with an invalid command line are left out; their runs will report the error."""
    found = {cell.name: resolved(cell, cell.common_arguments) for cell in cells}
    return {name: config for name, config in found.items() if config is not None}


def resolved(cell: Cell, words: Sequence[str]) -> Config | None:
    """The configuration of a command line with the cell's seed, and the digest of the initial weights; None for an invalid one."""
    config = copy.deepcopy(_read(tuple(words))[0])
    if config is not None:
        config["seed_everything"] = config["trainer"]["seed"] = cell.seed
        if cell.varies_split:
            config["data"]["init_args"][SPLIT_SEED.removeprefix("data.")] = cell.seed
        if config.get("init_from"):
            with contextlib.suppress(ValueError):  # its run will report the error
                config["init_from"] = _digest_in(config["init_from"])
    return config


def fault(cell: Cell) -> str:
    """The error in a cell's command line; empty for a valid one."""
    return _read(tuple(cell.common_arguments))[1]


def unmade(cell: Cell) -> str:
    """The refusal of a method's constructor, such as that of an impossible value; empty if there is none."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--callback", type=Callback)
    for part in callbacks_of(resolved(cell, cell.common_arguments) or {"trainer": {}}):
        try:
            parser.instantiate(parser.parse_object({"callback": part}))
        except Exception as error:  # A callback of Lightning's is none of ours, and has no refusal.
            if reason := refusal(error):
                return reason
    return ""


@functools.cache
def _digest_in(path: str) -> str:
    return digest_of(read_weights(Path(path)))


@functools.lru_cache(maxsize=4096)
def _read(words: tuple[str, ...]) -> tuple[dict[str, Any] | None, str]:
    """The configuration of ``flcog fit`` for a command line, or else the error in one line, without any output."""
    with (
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            return dict(_Reader(list(words)).config_dump), ""
        except SystemExit as end:  # of the parser
            return None, str(end.__cause__ or f"the command ends with status {end.code}")
        except Exception as error:
            return None, refusal(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"


def settings_of(config: Config) -> Settings:
    """The settings that can change a result, with defaults and class paths.

    Options that are off (null, false or empty) are left out, so that a new option does not change the settings of earlier runs.
    """
    kept = {name: value for name, value in config.items() if name in ("model", "data", "seed_everything", "init_from")}
    return dict(_flat({**kept, "trainer": {**config["trainer"], "callbacks": callbacks_of(config)}}, ""))


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in NO_SETTINGS:
                yield from _flat(inner, name if key == "init_args" else f"{name}.{key}".lstrip("."))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for place, inner in enumerate(value):
            yield from _flat(inner, f"{name}.{place}")
    elif value is not None and value is not False and value not in ("", [], ()):
        yield name, value


def own_classes(settings: Settings) -> list[str]:
    """The class paths of the user's own code: of no installed package."""
    return [
        path for name, path in settings.items() if name.rpartition(".")[2] == "class_path" and _is_own(path.partition(".")[0])
    ]


@functools.cache
def _is_own(package: str) -> bool:
    spec = PathFinder.find_spec(package)
    installed = spec is not None and PACKAGES & {*Path(spec.origin or "").parts}
    return not (installed or package == "flcog" or package in sys.stdlib_module_names)


def digest(settings: Settings) -> str:
    """Twelve hex digits, equal for equal settings; empty for unknown ones."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12] if settings else ""


def callbacks_of(config: Config) -> list[Any]:
    """The callbacks that may change the rows: their class paths with their arguments."""
    return [part for part in config["trainer"].get("callbacks") or () if class_of(part) not in WATCHES]


def class_of(part: Config) -> str:
    """The name of a class that a configuration gives."""
    return str(part["class_path"]).rpartition(".")[2]


def arguments_of(part: Config) -> Mapping[str, Any]:
    """The arguments that a configuration gives to a class."""
    return part.get("init_args") or {}


def start_of(part: Config) -> int:
    """The number of rounds before a callback acts."""
    return arguments_of(part).get("start_round") or 0


def without_place(config: Config, callbacks: Sequence[Any]) -> str:
    """A configuration with these callbacks as text, without the folder and the trackers of its run."""
    trainer = {name: value for name, value in config["trainer"].items() if name not in WHERE_IT_LIES}
    return json.dumps({**config, "trainer": {**trainer, "callbacks": callbacks}}, sort_keys=True, default=str)


def identity(config: Config) -> str:
    """Twenty hex digits, equal for runs with the same configuration, seed and version of flcog.

    The run's folder, its trackers and its observers do not count. Everything else does, including executor, precision, accelerator and
    the number of processes, because they can change last digits. The number of threads, which ``--jobs`` sets, can do so as well, but is
    ignored.
    """
    text = without_place(config, callbacks_of(config))
    return hashlib.sha256(f"{flcog.__version__} {text}".encode()).hexdigest()[:20]
