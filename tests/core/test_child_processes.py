"""The other processes of a run import their modules while the first process imports its own."""

import os
import sys
from pathlib import Path

import pytest

from flcog.commands.cli import number_of_processes
from flcog.core import child_processes

TARGET = """
import os, sys
from pathlib import Path
def run():
    Path("heard").write_text(" ".join([os.environ["LOCAL_RANK"], *sys.argv, str("json.tool" in sys.modules)]))
"""


@pytest.fixture(autouse=True)
def _by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in child_processes.STARTED_BY_OTHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)


@pytest.mark.parametrize(
    ("words", "config", "count"),
    [
        ("fit", "", 1),
        ("fit --trainer.devices 2", "", 2),
        ("fit --trainer.devices=3 --trainer.processes_per_device=2", "", 6),
        ("fit -c config.yaml", "trainer:\n  devices: 4\n", 4),
        ("fit -c config.yaml --trainer.devices 2", "trainer: {devices: 4}\n", 2),
        ("fit --config=config.yaml", "trainer: {devices: auto}", 1),
        ("fit -c quickstart --trainer.num_devices=2", "", 1),
    ],
)
def test_how_many(words: str, config: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(config)
    assert number_of_processes(words.split()) == count


def test_an_early_process_runs_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "target.py").write_text(TARGET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    child_processes.prepare(2, "json.tool", "target:run")
    first, second = child_processes.waiting
    monkeypatch.setattr(sys, "argv", ["flcog", "fit"])
    process = child_processes.start(["unused"], os.environ | {"LOCAL_RANK": "1"})
    assert process is second and process.wait(60) == 0
    assert (tmp_path / "heard").read_text() == "1 flcog fit True"
    child_processes.waiting.clear()
    first.communicate()
    assert first.returncode == 0, "it ends with the first process, which closes the pipe"
    assert child_processes.start([sys.executable, "-c", ""], dict(os.environ)).wait(60) == 0, "a new process"
