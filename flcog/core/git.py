"""The git commit for a result's record."""

import os
import subprocess
from pathlib import Path

CHANGED = "+changes"
"""Follows a commit from which files differ."""


def git_commit(folder: Path | None = None) -> str | None:
    """The commit of a folder, by default the working directory, with "+changes" if files differ from it; None outside a repository."""
    try:
        commit, status = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + CHANGED * bool(status)


def clone_commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the clone that contains flcog's package at its top; None for an installed package, even inside a repository."""
    root = package.resolve().parent
    return git_commit(root) if (root / ".git").exists() else None


def _git(folder: Path | None, *arguments: str) -> str:
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    result = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=5, check=True
    )
    return result.stdout.strip()
