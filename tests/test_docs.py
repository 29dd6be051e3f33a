"""The documentation site builds without a warning, its notebooks run, and every method has a page with its equations."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from harness import ROOT

import flcog.callbacks
from flcog.commands.methods import all_methods
from flcog.method import HOOKS, Method

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def test_every_method_has_a_page() -> None:
    pages = yaml.safe_load((ROOT / "docs/method_pages.yaml").read_text())
    assert set(pages) == {cls.__name__ for cls in all_methods()}, "docs/method_pages.yaml says when to use a method"
    for cls in all_methods():
        page, has_equation = pages[cls.__name__], "::\n" in (inspect.getdoc(cls) or "").partition("Example")[0]
        assert page["when"].endswith(".") and bool(page.get("equations")) >= has_equation, cls.__name__


def test_every_observer_and_schedule_is_on_its_page() -> None:
    exported = [getattr(flcog.callbacks, name) for name in flcog.callbacks.__all__]
    observers = [
        cls for cls in exported if isinstance(cls, type) and issubclass(cls, flcog.Callback) and cls not in all_methods()
    ]
    for page, classes in {"observers": observers, "schedules": flcog.schedules.Schedule.__subclasses__()}.items():
        text = (ROOT / f"docs/{page}.md").read_text()
        assert len(classes) >= 3 and not [cls.__name__ for cls in classes if f"`{cls.__name__}" not in text], page


@pytest.mark.parametrize(
    "page",
    ["observers", "schedules", "optimizers", "compression", "simulated-time", pytest.param("privacy", marks=pytest.mark.slow)],
)
def test_the_examples_of_a_page_run(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / f"docs/{page}.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), {"__name__": page})


def test_notebooks_show_their_outputs() -> None:
    for path in NOTEBOOKS:
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert any(cell["outputs"] for cell in cells) and all(cell["execution_count"] for cell in cells), path.name


def test_the_table_of_hooks_has_them_all() -> None:
    page = (ROOT / "docs/concepts.md").read_text()
    rows = re.findall(r"^\| [^|]+ \|([^|]+)\|[^|]+\|$", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {*HOOKS, "prepare_data", "plan", "personal"}


@pytest.mark.parametrize("cls", [Method, flcog.Cohort, flcog.Context, flcog.Upload, flcog.Messages])
def test_help_describes_every_attribute(cls: type) -> None:
    """docs/your-method.md sends the reader there, and ``help`` shows no strings below attributes."""
    said = inspect.getdoc(cls) or ""
    assert not [name for name in cls.__annotations__ if f"\n    {name}: " not in said]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="of the group docs, which CI installs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "methods/FedProx/index.html").read_text()
    assert "<math" in page and "flcog fit -c quickstart -c methods/fedprox" in page
    assert "://fonts." not in page and (tmp_path / "assets/latin-modern-math.woff").is_file(), (
        "the site loads nothing from elsewhere"
    )
    assert re.search(r"Measured.*selection.*Oort.*78\.85", (tmp_path / "methods/Oort/index.html").read_text(), re.DOTALL)
    index = (tmp_path / "search/search_index.json").read_text()
    assert "early stopping" in index and "learning rate over rounds" in index


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="of the group docs, which CI installs")
    import nbformat

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")  # the notebook's cells call flcog
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:  # fewer runs: each starts a process
        cell.source = cell.source.replace("seeds: [0, 1, 2]", "seeds: [0, 1]").replace("trainer.rounds: 6", "trainer.rounds: 2")
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
