"""Runs that another table has finished are not run twice: a note in the cell's folder names them."""

import os
from pathlib import Path

import yaml

from flcog.commands.compare.intact import FINISHED, damage_in, identity_in, table_of
from flcog.core.files import write_yaml

SAME_RUN = "same_run.yaml"


def folder_with_run(folder: Path) -> Path:
    """Where a cell's run lies: in its own folder, or in the one that a note there names, as long as that is finished and intact."""
    try:
        named = yaml.safe_load((folder / SAME_RUN).read_text(encoding="utf-8"))["folder"]
        other = (folder / str(named)).resolve()
    except (OSError, UnicodeError, yaml.YAMLError, KeyError, TypeError):
        return folder
    finished = (other / FINISHED).is_file() and table_of(other) is not None and damage_in(other) is None
    return other if finished else folder


def note(folder: Path, other: Path, remedy: str) -> None:
    """Say in a cell's folder that its run lies in another's; both may be moved together."""
    write_yaml(folder / SAME_RUN, {"folder": os.path.relpath(other.resolve(), folder.resolve())}, remedy)


def forget(folder: Path) -> None:
    """Take such a note away."""
    (folder / SAME_RUN).unlink(missing_ok=True)


def finished_runs(root: Path) -> dict[str, Path]:
    """The finished cells' folders of all tables below this folder, by their identities."""
    found = {}
    for pattern in ("*/seed*", "*/*/seed*", "*/*/*/seed*"):
        for path in sorted(root.glob(f"{pattern}/{FINISHED}")):
            if (text := identity_in(path.parent)) and damage_in(path.parent) is None:
                found[text] = path.parent
    return found
