"""The settings of a run: its command line, resolved in this process to the full configuration with all defaults."""

import contextlib
import copy
import functools
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser

from flcog.commands.command_cli import CommandCLI
from flcog.commands.compare.runs import SPLIT_SEED, Run
from flcog.commands.errors import refusal

Config = Mapping[str, Any]

Settings = Mapping[str, Any]
"""Settings by their dotted names."""

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


@functools.lru_cache(maxsize=4096)
def _read(words: tuple[str, ...]) -> tuple[dict[str, Any] | None, str]:
    """The configuration of ``flcog fit`` for a command line, or else the error in one line, without any output."""
    quiet = io.StringIO()
    with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return dict(_Reader(list(words)).config_dump), ""
        except SystemExit as end:  # of the parser
            return None, str(end.__cause__ or f"the command ends with status {end.code}")
        except Exception as error:
            return None, refusal(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"


def resolve(run: Run, extra: bool = True) -> Config | None:
    """A run's configuration, with the user's ``extra`` arguments or without; None for an invalid command line."""
    config = copy.deepcopy(_read((*run.words, *(run.extra if extra else ())))[0])
    if config is not None:
        config["seed_everything"] = config["trainer"]["seed"] = run.seed
        if run.varies_split:
            config["data"]["init_args"][SPLIT_SEED.removeprefix("data.")] = run.seed
    return config


def fault(run: Run) -> str:
    """The error in a run's command line; empty for a valid one."""
    return _read((*run.words, *run.extra))[1]


def settings_of(config: Config | None) -> Settings:
    """The settings that can change a result, with defaults and class paths; empty for an unknown configuration.

    Options that are off (null, false or empty) are left out, so that a new option does not change the settings of earlier runs.
    """
    if config is None or "trainer" not in config:
        return {}
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


def run_settings(run: Run) -> Settings:
    """The settings with which a run was trained; empty without a ``config.yaml``."""
    return settings_of(run.saved.config) if run.saved else {}


def other_settings(run: Run) -> str:
    """The settings of a trained run that are not the table's; empty if it has exactly these."""
    ours, table = run_settings(run), settings_of(resolve(run, extra=False))
    return differences(ours, table) if bool(ours) == bool(table) else "unknown settings"


def check_settings(run: Run) -> None:
    """Refuse to go on with a run that has other settings than the command."""
    ours, asked = run_settings(run), settings_of(resolve(run))
    if ours and asked and (found := differences(ours, asked)):
        raise ValueError(f"{run.folder} holds this arm with other settings ({found}): choose another --out, or delete it")


def differences(ours: Settings, others: Settings) -> str:
    """The settings that differ: "trainer.rounds 5 instead of 20"."""
    names = [name for name in dict.fromkeys([*ours, *others]) if ours.get(name) != others.get(name)]
    return ", ".join(f"{name} {ours.get(name, '(none)')} instead of {others.get(name, '(none)')}" for name in names)


def stated(words: Sequence[str]) -> str:
    """What a part of a command line states, by which a saved result is known to belong to its table.

    These are its configs by name and its options, without those that change no result. The contents of configs are not a part of it.

    >>> stated(["-c", "configs/digits.yaml", "--trainer.rounds=5", "--data.data_dir", "data"])
    'digits trainer.rounds=5'
    """
    parts = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    pairs = [(option.removeprefix("--"), value) for option, value in zip(parts[::2], parts[1::2], strict=False)]
    said = {Path(value).stem if option == "-c" else option: "" if option == "-c" else f"={value}" for option, value in pairs}
    return " ".join(name + value for name, value in said.items() if name.rpartition(".")[2] not in NO_SETTINGS)


def callbacks_of(config: Config) -> list[Any]:
    """The callbacks that may change the rows: their class paths with their arguments."""
    return [part for part in config["trainer"].get("callbacks") or () if class_of(part) not in WATCHES]


def class_of(part: Config) -> str:
    """The name of a class that a configuration gives."""
    return str(part["class_path"]).rpartition(".")[2]


def arguments_of(part: Config) -> Mapping[str, Any]:
    """The arguments that a configuration gives to a class."""
    return part.get("init_args") or {}
