"""The commit of a run's code."""

import os
import subprocess
from pathlib import Path

import pytest

from flcog.run.directory import git_commit


def git(*arguments: str) -> str:
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.com", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", *identity, *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit of one file, as the working directory."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    git("init")
    Path("file").write_text("1")
    git("add", "file")
    git("commit", "-m", "first")
    return folder


def test_there_is_none_outside_a_repository_or_before_the_first_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert git_commit() is None
    git("init")
    assert git_commit() is None


def test_the_git_commit_is_the_working_directorys(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_commit() == git("rev-parse", "HEAD")
    os.utime("file")
    Path("untracked").write_text("nothing of the commit's")
    assert git_commit() == git("rev-parse", "HEAD")
    (repository / "below").mkdir()
    monkeypatch.chdir(repository / "below")
    assert git_commit() == git("rev-parse", "HEAD")
    (repository / "file").write_text("2")
    assert git_commit() == git("rev-parse", "HEAD") + "+changes"
