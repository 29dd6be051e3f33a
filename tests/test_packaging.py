"""The files of a release: the lock has every dependency in a version that pyproject.toml allows, with hashes and without hosts."""

import re
import tomllib

from harness import ROOT
from packaging.requirements import Requirement

LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED = dict(re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE))


def test_every_dependency_is_locked() -> None:
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert requirement.specifier.contains(LOCKED[requirement.name.lower()]), (
            f"{requirement}: run the command in CONTRIBUTING.md"
        )


def test_every_locked_package_has_hashes() -> None:
    entries = re.split(r"^(?=\S+==)", LOCK, flags=re.MULTILINE)[1:]
    assert entries and all("--hash=sha256:" in entry for entry in entries)


def test_the_lock_names_no_host() -> None:
    assert "://" not in LOCK and "index-url" not in LOCK


def test_malicious_releases_are_shut_out() -> None:
    (lightning,) = (Requirement(text) for text in PROJECT["dependencies"] if text.startswith("lightning"))
    assert not any(lightning.specifier.contains(version) for version in ("2.6.2", "2.6.3"))
    assert lightning.specifier.contains("2.6.4")


def test_the_changelog_has_the_version() -> None:
    assert f"\n## {PROJECT['version']}\n" in (ROOT / "CHANGELOG.md").read_text()
