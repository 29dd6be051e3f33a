"""``flcog new method`` writes files that pass their own tests and run. If it refuses a name, it writes no files."""

import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT

from flcog.commands.cli import main

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
    "my-method": "a method's name is a Python class's, such as MyMethod; got 'my-method'",
    "FedProx": "flcog has a FedProx already: choose another name",
    "Torch": "Python has a module 'torch' already, which would be taken for yours",
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
