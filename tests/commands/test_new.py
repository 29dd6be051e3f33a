"""``flcog new`` writes files that run, and of a method files that pass their own tests. If it refuses a name, it writes no files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT

from flcog.commands.cli import main
from flcog.commands.new.command import USES

pytestmark = pytest.mark.usefixtures("command_line")

FLCOG = (sys.executable, "-P", "-m", "flcog")
FILES = ["my_pull.py", "my_pull.yaml", "reference_my_pull.py", "test_my_pull.py"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_what_it_writes_passes_and_runs_and_its_tests_can_fail(tmp_path: Path) -> None:
    main(["new", "method", "MyPull"])
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    passed = subprocess.run(tests, capture_output=True, text=True)
    assert passed.returncode == 0 and "5 passed" in passed.stdout, passed.stdout
    small = ["--trainer.rounds", "1", "--trainer.local_steps", "1", "--trainer.logger", "false"]
    run = subprocess.run([*FLCOG, "fit", "-c", "quickstart", "-c", "my_pull.yaml", *small], capture_output=True, text=True)
    assert run.returncode == 0 and "MyPull(strength=0.1)" in run.stdout, run.stderr
    method = tmp_path / "my_pull.py"
    method.write_text(method.read_text().replace("self.strength / 2", "self.strength / 3"))
    assert "3 passed" in subprocess.run(tests, capture_output=True, text=True).stdout


PAGE = (ROOT / "docs/your-part.md").read_text()
SECTIONS = re.findall(r"    flcog new (\w+) (\w+)\n    flcog (fit [^\n]+)\n\n```python\n(.+?)```", PAGE, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "words", "code"), SECTIONS, ids=[section[0] for section in SECTIONS])
def test_a_part_is_that_of_its_page_and_runs(
    kind: str, name: str, words: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["new", kind, name])
    assert f"  flcog {words.partition(' --trainer.callbacks.')[0]}\n" in capsys.readouterr().out
    (file,) = tmp_path.iterdir()
    assert file.read_text() == code
    small = [
        "--trainer.rounds",
        "2",
        "--trainer.local_steps",
        "1",
        "--trainer.eval_every",
        "1",
        "--trainer.default_root_dir",
        "runs",
    ]
    main([*words.split(), *small, *([] if kind == "tracker" else ["--trainer.logger", "false"])])
    told = capsys.readouterr().out
    (rows,) = Path("runs").glob("*/metrics.csv")
    columns = rows.read_text().splitlines()[0].split(",")
    assert "test/accuracy" in columns
    assert {"metric": f"test/{name}" in columns, "tracker": Path("rows.jsonl").exists(), "split": True}.get(kind, name in told)


def test_each_kind_has_a_section() -> None:
    assert {section[0] for section in SECTIONS} == USES.keys() - {"method"}


def test_its_files_are_clean_and_the_reference_is_independent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["new", "method", "my_pull"])
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    assert "flcog fit -c quickstart -c my_pull.yaml" in capsys.readouterr().out
    reference = (tmp_path / "reference_my_pull.py").read_text()
    assert "import flcog" not in reference and "from flcog" not in reference and "import my_pull" not in reference
    assert not any("__" in word and word.strip("()") != "__post_init__" for word in reference.split())
    ruff = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--ignore", "I", "."]
    assert subprocess.run(ruff, capture_output=True, text=True).returncode == 0


REFUSED = {
    "my-method": "the name is a Python class's, such as MyMethod; got 'my-method'",
    "FedProx": "flcog has a FedProx already: choose another name",
}


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_cannot_be_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["new", "method", name])
    shown = capsys.readouterr().err
    assert shown.startswith(f"flcog: error: {REFUSED[name]}") and len(shown.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_my_pull.py").write_text("mine")
    with pytest.raises(SystemExit):
        main(["new", "method", "MyPull"])
    assert "test_my_pull.py exists already: choose another name, or remove it" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["test_my_pull.py"] and (
        tmp_path / "test_my_pull.py"
    ).read_text() == "mine"
