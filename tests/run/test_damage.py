"""Damaged files of a run lead to a message of one line that names the file, never to wrong training."""

import shutil
from pathlib import Path

import pytest
import torch
from harness import fit

import flcog
from flcog.callbacks import SCAFFOLD, EarlyStopping, FedAvgM, RoundsToTarget
from flcog.run import checkpoint
from flcog.run.metrics_table import read_rows

LAST = "checkpoints/last.ckpt"


def methods() -> list[flcog.Callback]:
    return [SCAFFOLD(), FedAvgM(), EarlyStopping(), RoundsToTarget(0.99)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds; tests work on copies."""
    torch.manual_seed(0)
    run = fit(tmp_path_factory.mktemp("finished"), *methods(), rounds=2, eval_every=1).run_dir
    assert run is not None
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def states_file(run: Path) -> Path:
    return max((run / "checkpoints/clients").iterdir())


def resume(run: Path, rounds: int = 3) -> flcog.FederatedTrainer:
    return fit(run.parent / "runs", *methods(), ckpt_path=str(run), rounds=rounds, eval_every=1)


@pytest.mark.parametrize("of", ["run", "clients"])
def test_a_truncated_checkpoint_is_refused_in_one_line(run: Path, of: str) -> None:
    path = run / LAST if of == "run" else states_file(run)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"is no readable flcog checkpoint") as refusal:
        checkpoint.read(path)
    assert str(path) in str(refusal.value) and "\n" not in str(refusal.value)


DAMAGE = {"half a line": b"\r\n2,", "a word": b"\r\ntwo,0.5\r\n", "NUL bytes": b"\r\n\0\0\0\0\r\n", "Latin-1": b"\r\n2,\xe9\r\n"}


@pytest.mark.filterwarnings("ignore:.*is damaged")
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_run_with_a_damaged_table_goes_on(finished: Path, run: Path, damage: str) -> None:
    whole = resume(Path(shutil.copytree(finished, run.parent / "whole")))
    table = run / "metrics.csv"
    table.write_bytes(table.read_bytes().split(b"\r\n2,")[0] + DAMAGE[damage])
    resumed = resume(run)
    assert [row["round"] for row in resumed.history] == [1, 3]
    assert all(torch.equal(resumed.params[name], value) for name, value in whole.params.items())


@pytest.mark.filterwarnings("ignore:.*is damaged")
def test_rows_are_read_up_to_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for content, rows in (
        ("round,x\r\n1,0.5\r\n2,\r\n", [{"round": 1, "x": 0.5}, {"round": 2}]),
        ("round,x\r\n1,0.5\r\n2,much\r\n3,1\r\n", [{"round": 1, "x": 0.5}]),
        ("x,y\r\n1,0.5\r\n", []),
        ("\0\0\0\0", []),
        ("", []),
    ):
        path.write_text(content, newline="")
        assert read_rows(path) == rows
