"""A run writes and deletes only its own files: files beside them are the user's."""

import shutil
from pathlib import Path

import pytest
from harness import fit

from flcog.callbacks import SCAFFOLD


def test_a_resume_leaves_files_alone_that_the_run_did_not_write(tmp_path: Path) -> None:
    run = fit(tmp_path / "runs", SCAFFOLD(), rounds=2).run_dir
    assert run is not None
    folder = run / "checkpoints/clients"
    (folder / "notes.txt").write_text("mine")
    killed = folder / "round-000003-rank0.pt"  # a kill between a round's states and its checkpoint leaves such a file
    shutil.copy(max(folder.glob("round-000002*")), killed)
    fit(tmp_path / "runs", SCAFFOLD(), rounds=4, ckpt_path=str(run))
    assert {path.name for path in folder.iterdir()} == {"notes.txt", "round-000004-rank0.pt"}


def test_a_folder_that_is_no_run_is_not_written_to(tmp_path: Path) -> None:
    run = fit(tmp_path / "runs", rounds=2).run_dir
    assert run is not None
    project = tmp_path / "project"
    (project / "checkpoints/clients").mkdir(parents=True)
    (project / "config.yaml").write_text("mine")
    shutil.copy(run / "checkpoints/last.ckpt", project / "checkpoints")
    with pytest.raises(ValueError, match="lies outside a run's directory"):
        fit(tmp_path / "runs", rounds=4, ckpt_path=str(project))
    assert (project / "config.yaml").read_text() == "mine" and not (project / "metrics.csv").exists()
