"""Controls which folders a command imports users' modules from."""

import os
import sys
from pathlib import Path

IMPORT_FROM = (
    "a folder with your own modules that the run's config names. Without it nothing is imported from the run's folder or the working "
    "directory, because a run may come from a stranger"
)
"""The help of the option ``--import-from``."""

working_directory: str | None = None
"""The folder where class paths are looked up besides installed packages. None for a command that only reads a run."""


def find_modules_here() -> None:
    """Let class paths name modules in the working directory, as ``python -m flcog`` does and an installed script does not.

    The directory comes last on the path: a file called random.py or torch.py there must not replace the module of that name.
    """
    global working_directory
    working_directory = os.getcwd()
    if working_directory not in sys.path:
        sys.path.append(working_directory)


def import_only_from(folder: Path | None) -> None:
    """Import modules from the installed packages and from ``folder``, but not from the working directory.

    ``python -m flcog`` puts the working directory on Python's path, where an installed script does not.
    """
    global working_directory
    here, working_directory = os.getcwd(), None
    if not sys.flags.safe_path and sys.path[:1] in ([""], [here]):
        del sys.path[0]
    if folder is None:
        return
    if not folder.is_dir():
        raise ValueError(f"--import-from {folder} is no folder: give the folder that contains your own modules")
    sys.path.append(str(folder.resolve()))
