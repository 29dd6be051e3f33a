"""The documentation site builds without a warning, its notebooks run, and every method's equations are there."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from harness import ROOT

from flcog.commands.methods import all_methods
from flcog.method import HOOKS, Method

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def test_every_method_has_a_page() -> None:
    pages = yaml.safe_load((ROOT / "docs/method_pages.yaml").read_text())
    assert set(pages) == {cls.__name__ for cls in all_methods()}, "docs/method_pages.yaml says when to use a method"
    for cls in all_methods():
        page, has_equation = pages[cls.__name__], "::\n" in (inspect.getdoc(cls) or "").partition("Example")[0]
        assert page["when"].endswith(".") and bool(page.get("equations")) >= has_equation, cls.__name__


def test_the_table_of_hooks_has_them_all() -> None:
    """With how the contributions of several methods are folded, as the hook itself says."""
    page = (ROOT / "docs/concepts.md").read_text()
    folded = {
        name: how.strip()
        for names, how in re.findall(r"^\| [^|]+ \|([^|]+)\|([^|]+)\|$", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert folded.keys() == set(HOOKS)
    words = {
        "combined": "And",
        "chained": "Chain",
        "nested": "Nested",
        "kept apart": "Own slot",
        "summed": "Sum",
        "one method's": "Exclusive",
    }
    for name, how in folded.items():
        said = inspect.getdoc(getattr(Method, name)) or ""
        assert any(words[part.partition(":")[0]].lower() in said.lower() for part in how.split("; ")), f"{name}: {how}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="of the group docs, which CI installs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "methods/FedProx/index.html").read_text()
    assert "<math" in page and "flcog fit -c quickstart -c methods/fedprox" in page
    assert "://fonts." not in page, "a reader without a network sees the page as it is meant"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="of the group docs, which CI installs")
    import nbformat

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")  # its cells call flcog
    nbclient.NotebookClient(nbformat.read(path, as_version=4), timeout=600, kernel_name="python3").execute()
