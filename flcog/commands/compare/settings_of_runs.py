"""The settings of a cell's run: from the table, from the command line, and whether the table has changed since."""

import hashlib
import json
import shlex
from collections.abc import Sequence

from flcog.commands.compare.folder import ARGUMENTS, Option, options_of
from flcog.commands.compare.plan import Cell
from flcog.core.masking import masked_command

NO_SETTING = (
    "--trainer.default_root_dir",
    "--trainer.logger",
    "--trainer.accelerator",
    "--trainer.devices",
    "--trainer.processes_per_device",
    "--data.data_dir",
)
"""Options for the folders and devices of a run, which do not change its results."""


def _settings(arguments: Sequence[str]) -> list[Option]:
    return [option for option in options_of(arguments) if option[0] not in NO_SETTING]


def _own(cell: Cell) -> list[Option]:
    added = _settings(cell.extra)
    return [option for option in _settings(cell.arguments) if option not in added]


def digest(cell: Cell) -> str:
    """A digest of the table's own settings for a cell, which changes with the table."""
    return hashlib.sha256(json.dumps(_own(cell)).encode()).hexdigest()[:12]


def added_arguments(cell: Cell) -> str:
    """The options of the command that ran the cell, without the table's own settings."""
    own = _own(cell)
    added = [word for option in _earlier(cell) or () if option not in own for word in option]
    return " ".join(shlex.split(masked_command(added)))


def is_outdated(cell: Cell) -> bool:
    """Whether the table has changed since the cell was run."""
    earlier = _earlier(cell)
    return earlier is not None and any(option not in earlier for option in _own(cell))


def _earlier(cell: Cell) -> list[Option] | None:
    words = cell.files.read(ARGUMENTS)
    return _settings([str(word) for word in words]) if isinstance(words, list) else None
