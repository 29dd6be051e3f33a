"""Configs that come with flcog are found by name, from any folder."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from harness import ROOT

from flcog.commands import shipped_configs
from flcog.commands.cli import main
from flcog.commands.compare.table import read_table


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("given", ["quickstart", "./configs/quickstart.yaml"])
def test_a_name_stands_for_the_shipped_file(given: str) -> None:
    assert Path(shipped_configs.find(given)) == ROOT / "configs/quickstart.yaml"


def test_a_file_of_the_users_comes_first(tmp_path: Path) -> None:
    (tmp_path / "quickstart").write_text("trainer: {}")
    assert shipped_configs.find("quickstart") == "quickstart"


def test_only_what_follows_the_option_is_a_name() -> None:
    words = ["fit", "-c", "methods/fedprox", "--config=quickstart", "--trainer.default_root_dir", "quickstart"]
    method, quickstart = ROOT / "configs/methods/fedprox.yaml", ROOT / "configs/quickstart.yaml"
    expected = ["fit", "-c", str(method), f"--config={quickstart}", "--trainer.default_root_dir", "quickstart"]
    assert shipped_configs.with_paths(words) == expected


def test_fit_and_compare_take_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):  # --print_config exits
        main(["fit", "-c", "quickstart", "-c", "methods/fedprox", "--print_config"])
    assert "flcog.callbacks.FedProx" in capsys.readouterr().out
    main(["compare", "digits", "--show"])
    assert "SCAFFOLD" in capsys.readouterr().out


def test_a_table_of_ones_own_takes_names(tmp_path: Path) -> None:
    table = tmp_path / "table.yaml"
    table.write_text("configs: [quickstart]\nrows: {FedProx: {configs: [methods/fedprox]}}")
    assert read_table(table).rows["FedProx"].configs == (ROOT / "configs/methods/fedprox.yaml",)
    (tmp_path / "quickstart").write_text("trainer: {}")
    assert read_table(table).configs == (tmp_path / "quickstart",), "a file in the table's folder comes first"


def test_the_list_says_what_each_is(capsys: pytest.CaptureFixture[str]) -> None:
    main(["configs"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list((ROOT / "configs").rglob("*.yaml"))) - 1, "papers.yaml is no config"
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines), "each says in a line what it is"
    main(["configs", "fedprox"])
    assert capsys.readouterr().out.split() == ["methods/fedprox", "FedProx"]
    main(["configs", "methods/fedprox"])
    assert capsys.readouterr().out == (ROOT / "configs/methods/fedprox.yaml").read_text()


def test_a_slip_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "-c", "quikstart"])
    said = capsys.readouterr().err
    assert "flcog configs" in said and "Did you mean 'quickstart'?" in said and said.count("\n") == 1
    with pytest.raises(SystemExit):
        main(["configs", "nonsense"])
    assert "flcog configs lists them all" in capsys.readouterr().err


@pytest.mark.slow
def test_the_wheel_holds_them(tmp_path: Path) -> None:
    """The wheel alone trains a run with one command. The environment of this test provides the packages that flcog needs."""
    source = tmp_path / "source"  # building leaves files beside the source
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "runs", "tests"))
    subprocess.run(["uv", "build", "--wheel", "-q", "-o", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import sys, flcog; assert 'site' in flcog.__file__; from flcog.commands.cli import main; main(sys.argv[1:])"
    words = ["fit", "-c", "quickstart", "-c", "methods/scaffold", "--trainer.rounds", "1", "--trainer.logger", "false"]
    # -P keeps the working directory off the path, and PYTHONPATH comes before the editable install.
    subprocess.run([sys.executable, "-P", "-c", code, *words], check=True, env=_environment(tmp_path), cwd=tmp_path)
    assert list((tmp_path / "runs").glob("*/metrics.csv"))


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder / "site")}
