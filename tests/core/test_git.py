"""The commit of a run's code. Reading it from a stranger's repository must not run any program."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from flcog.core.git import git_commit


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


def test_a_second_worktree_has_its_own_commit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git("worktree", "add", "../beside")
    monkeypatch.chdir(repository.parent / "beside")
    git("commit", "--allow-empty", "-m", "second")
    assert git_commit() == git("rev-parse", "HEAD")
    (repository.parent / "beside" / "file").write_text("2")
    assert git_commit() == git("rev-parse", "HEAD") + "+changes"
    monkeypatch.chdir(repository)
    assert git_commit() == git("rev-parse", "HEAD")


def by_monitor(program: str) -> None:
    git("config", "core.fsmonitor", program)


def by_filter(program: str) -> None:
    Path(".gitattributes").write_text("* filter=evil diff=evil\n")
    git("config", "filter.evil.clean", program)
    git("config", "filter.evil.process", program)
    git("config", "diff.evil.textconv", program)
    git("config", "diff.evil.command", program)


def by_hook(program: str) -> None:
    Path("hooks").mkdir()
    for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        Path("hooks", name).symlink_to(program)
    git("config", "core.hooksPath", "hooks")


def by_command(program: str) -> None:
    for command in ("status", "rev-parse"):
        git("config", f"alias.{command}", f"!{program}")
    for name in ("core.pager", "pager.status", "core.editor", "diff.external", "core.sshCommand", "core.gitProxy"):
        git("config", name, program)


def by_missing_objects(program: str) -> None:
    """A partial clone fetches missing objects, here with a program that its configuration names."""
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "evil",
        "remote.evil.promisor": "true",
        "remote.evil.url": f"ext::{program}",
        "protocol.ext.allow": "always",
    }.items():
        git("config", name, value)
    tree = git("rev-parse", "HEAD^{tree}")
    Path(".git/objects", tree[:2], tree[2:]).unlink()


def by_submodule(program: str) -> None:
    git("submodule", "add", str(Path.cwd()), "inner")
    git("commit", "-m", "with a submodule")
    git("-C", "inner", "config", "core.fsmonitor", program)
    Path("inner/file").write_text("3")


@pytest.mark.parametrize("attack", [by_monitor, by_filter, by_hook, by_command, by_missing_objects, by_submodule])
def test_a_hostile_repository_runs_nothing(attack: Callable[[str], None], repository: Path) -> None:
    program, trace = repository.parent / "program", repository.parent / "it was run"
    program.write_text(f"#!/bin/sh\ntouch '{trace}'\ncat\n")
    program.chmod(0o755)
    attack(str(program))
    Path("file").write_text("3")
    git_commit()
    assert not trace.exists()
