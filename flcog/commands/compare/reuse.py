"""Runs that another table has finished are not run twice: a note in the cell's folder names them."""

import os
from pathlib import Path

import yaml

from flcog.core.files import write_yaml

SAME_RUN = "same_run.yaml"
FINISHED = "finished"
"""The file in a cell's folder that says so; it holds the run's identity."""


def folder_with_run(folder: Path) -> Path:
    """Where a cell's run lies: in its own folder, or in the one that a note there names, as long as that is finished."""
    try:
        named = yaml.safe_load((folder / SAME_RUN).read_text(encoding="utf-8"))["folder"]
        other = (folder / str(named)).resolve()
    except (OSError, UnicodeError, yaml.YAMLError, KeyError, TypeError):
        return folder
    return other if (other / FINISHED).is_file() and any(other.glob("*/metrics.csv")) else folder


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
            if text := path.read_text(errors="replace").strip():
                found[text] = path.parent
    return found
