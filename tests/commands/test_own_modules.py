"""Class paths of modules in the working directory, outside a clone of the repository."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT

from flcog.commands.cli import main

QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")
SMALL = ["--trainer.rounds", "2", "--trainer.local_steps", "1", "--data.num_clients", "3", "--trainer.logger", "false"]
SECTION = (ROOT / "docs/your-method.md").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the method and the YAML of docs/your-method.md, as a reader would write them."""
    for file, language in (("my_module.py", "python"), ("crowd.yaml", "yaml")):
        blocks = re.findall(rf"```{language}\n(.*?)```", SECTION, re.S)
        assert file in SECTION
        (tmp_path / file).write_text(next(block for block in blocks if "FollowTheCrowd" in block))
    # Python must not import these files instead of the modules with the same names.
    for name in ("random", "torch", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the one that was meant')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(folder: Path) -> None:
    (run,) = (folder / "runs").iterdir()
    assert "strength=0.05" in (run / "run.yaml").read_text()
    assert len(list(csv.DictReader((run / "metrics.csv").open()))) == 2


@pytest.mark.slow
def test_a_module_of_the_working_directory(folder: Path, command_line: None) -> None:
    sys.path[:] = [each for each in sys.path if each not in ("", str(Path.cwd()))]
    try:
        main(["fit", "-c", QUICKSTART, "-c", "crowd.yaml", *SMALL])
    finally:
        sys.modules.pop("my_module", None)
    check(folder)
    assert sys.path[-1] == str(folder) and sys.path.count(str(folder)) == 1


@pytest.mark.slow
def test_the_installed_script_and_compare(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    script = Path(sys.executable).with_name("flcog")

    def flcog(*arguments: str) -> None:
        result = subprocess.run([script, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr

    flcog("fit", "-c", QUICKSTART, "-c", "crowd.yaml", *SMALL)
    check(folder)
    (folder / "table.yaml").write_text(f"configs: [{QUICKSTART}]\nrows: {{Crowd: {{configs: [crowd.yaml]}}}}\n")
    flcog("compare", "table.yaml", "--out", "table", "--", *SMALL)
    assert "Crowd" in (folder / "table" / "table.md").read_text()
