"""Read the git commit for a result's record, without running programs that the repository's configuration names."""

import os
import subprocess
import tempfile
from pathlib import Path

CHANGED = "+changes"
"""Follows a commit from which files differ."""


def git_commit(folder: Path | None = None) -> str | None:
    """The commit of a folder, with "+changes" if files differ from it; None outside a repository.

    Args:
        folder: the folder; by default the working directory.
    """
    try:
        folder = (folder or Path()).resolve()
        questions = ("--show-toplevel", "--git-path", "objects", "--git-path", "index", "HEAD")
        root, objects, index, commit = _git("rev-parse", *questions, folder=folder, env=os.environ).splitlines()
        return commit + (CHANGED if _differs(Path(root), folder / objects, folder / index, commit) else "")
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def clone_commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the clone that contains flcog's package at its top; None for an installed package, even inside a repository."""
    root = package.resolve().parent
    return git_commit(root) if (root / ".git").exists() else None


def _differs(root: Path, objects: Path, index: Path, commit: str) -> bool:
    """Whether files differ from the commit.

    A repository's configuration names programs that ``git status`` runs: filters, a file monitor, hooks, commands that fetch
    missing objects. A working directory may be a stranger's, whose programs must not run. Therefore git reads the repository's
    files, index and objects with an empty configuration. Submodules, which have their own configuration, are left out.
    """
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder)
        (empty / "refs").mkdir()
        (empty / "HEAD").write_text(f"{commit}\n")
        environment = {
            "GIT_DIR": folder,
            "GIT_WORK_TREE": str(root),
            "GIT_INDEX_FILE": str(index),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "HOME": folder,  # hides the user's configuration: a stranger's .gitattributes could call its filters
            "XDG_CONFIG_HOME": folder,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        # Some file systems do not store whether a file is executable, so ignore that bit.
        status = ("-c", "core.fileMode=false", "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
        return bool(_git(*status, folder=root, env=kept | environment).strip())


def _git(*arguments: str, folder: Path, env: os._Environ[str] | dict[str, str]) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=5, check=True).stdout
