"""Resolves a cell's command line to a full configuration in this process, before its run is started."""

import contextlib
import copy
import hashlib
import io
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import flcog
from flcog.commands.command_cli import CommandCLI
from flcog.commands.compare.plan import SPLIT_SEED, Cell

Config = Mapping[str, Any]

WHERE_IT_LIES = ("default_root_dir", "logger", "resume_changed")
"""Options of the trainer without influence on the results."""
WATCHES = ("Checkpoint", "ProgressBar", "PartitionChart", "Summary")
"""Callbacks that add no columns to metrics.csv."""


class _Reader(CommandCLI):
    """Parses a command line without instantiating anything."""

    def instantiate_classes(self) -> None:
        self._dump_config()

    def _set_seed(self) -> None:
        """Draw nothing."""


def resolve(cells: Iterable[Cell]) -> dict[str, Config]:
    """The cells' configurations by name. Cells with an invalid command line are left out; their runs will report the error."""
    read: dict[tuple[str, ...], Config | None] = {}
    found = {}
    for cell in cells:
        words = tuple(cell.common_arguments)
        if words not in read:
            read[words] = _read(words)
        config = read[words]
        if config is not None:
            found[cell.name] = _with_seed(config, cell)
    return found


def _read(words: Sequence[str]) -> Config | None:
    """The configuration of ``flcog fit`` for a command line; None for an invalid one, without any output."""
    with (
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            return dict(_Reader(list(words)).config_dump)
        except (Exception, SystemExit):
            return None


def _with_seed(config: Config, cell: Cell) -> Config:
    config = cast(dict[str, Any], copy.deepcopy(config))
    config["seed_everything"] = config["trainer"]["seed"] = cell.seed
    if cell.varies_split:
        config["data"]["init_args"][SPLIT_SEED.removeprefix("data.")] = cell.seed
    return config


def callbacks_of(config: Config) -> list[Any]:
    """The callbacks that may change the rows: their class paths with their arguments."""
    return [part for part in config["trainer"].get("callbacks") or () if class_of(part) not in WATCHES]


def class_of(part: Config) -> str:
    """The name of a class that a configuration gives."""
    return str(part["class_path"]).rpartition(".")[2]


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
