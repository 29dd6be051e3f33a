"""Methods that a run carries, only gathering, for others that branch from it: a note in its cell's folder, so that it resumes with them."""

import json
from typing import Any

import yaml

from flcog.commands.compare.plan import OUT_REMEDY, Cell
from flcog.commands.compare.reuse import folder_with_run
from flcog.core.files import write_yaml

CARRIED = "carried.yaml"


def carried_by(cell: Cell) -> list[Any]:
    """What the run carries that has begun or finished there: class paths with their arguments."""
    try:
        parts = yaml.safe_load((folder_with_run(cell.folder) / CARRIED).read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError):
        return []
    return parts if isinstance(parts, list) else []


def options_to_carry(cell: Cell) -> list[str]:
    """The options that make its run carry them: those with which it began, or those that are meant, which are noted."""
    if not cell.begun:
        (cell.folder / CARRIED).unlink(missing_ok=True)
        if cell.carried:
            write_yaml(cell.folder / CARRIED, list(cell.carried), OUT_REMEDY)
    return [f"--trainer.callbacks+={json.dumps(part)}" for part in (carried_by(cell) if cell.begun else cell.carried)]
