"""A run writes and deletes only its own files: files beside them, or behind a symbolic link, are the user's."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import TinyData, classifier, fit
from lightning.pytorch.loggers import CSVLogger

import flcog
from flcog.callbacks import SCAFFOLD
from flcog.commands.export import export
from flcog.commands.predict import predict
from flcog.commands.report.command import report


def test_a_resume_leaves_files_alone_that_the_run_did_not_write(tmp_path: Path) -> None:
    run = fit(tmp_path / "runs", SCAFFOLD(), rounds=2).run_dir
    assert run is not None
    folder, other = run / "checkpoints/clients", fit(tmp_path / "other", SCAFFOLD(), rounds=1).run_dir
    assert other is not None
    (folder / "notes.txt").write_text("mine")
    (folder / "round-000009-rank0.pt").write_text("not written by flcog, whatever its name")
    shutil.copy(other / "checkpoints/clients/round-000001-rank0.pt", folder / "round-000008-rank0.pt")
    (folder / "round-000007-rank0.pt").mkdir()
    killed = folder / "round-000003-rank0.pt"  # a kill between a round's states and its checkpoint leaves such a file
    shutil.copy(max(folder.glob("round-000002*")), killed)
    fit(tmp_path / "runs", SCAFFOLD(), rounds=4, ckpt_path=str(run))
    assert {path.name for path in folder.iterdir()} == {
        "notes.txt",
        "round-000009-rank0.pt",
        "round-000008-rank0.pt",
        "round-000007-rank0.pt",
        "round-000004-rank0.pt",
    }


def test_a_folder_that_is_no_run_is_not_written_to(tmp_path: Path) -> None:
    run = fit(tmp_path / "runs", rounds=2).run_dir
    assert run is not None
    project = tmp_path / "project"
    (project / "checkpoints/clients").mkdir(parents=True)
    (project / "config.yaml").write_text("mine")
    shutil.copy(run / "checkpoints/last.ckpt", project / "checkpoints")
    for record in (None, "mine: 1", "[[[", "a: &a [*a]"):
        if record is not None:
            (project / "run.yaml").write_text(record)
        with pytest.raises(ValueError, match="project is not a run's directory"):
            fit(tmp_path / "runs", rounds=4, ckpt_path=str(project))
    assert (project / "config.yaml").read_text() == "mine" and not (project / "metrics.csv").exists()


@pytest.mark.parametrize("name", ["metrics.csv", "run.yaml", ".writer.yaml", "checkpoints/clients", "checkpoints/best.ckpt"])
def test_links_in_a_run_directory_are_refused(tmp_path: Path, name: str) -> None:
    run = fit(tmp_path / "runs", SCAFFOLD(), rounds=1).run_dir
    assert run is not None
    target = tmp_path / "target"
    if (run / name).exists():
        (run / name).rename(target)
    else:
        target.write_text("mine")
    (run / name).symlink_to(target)
    before = target.read_bytes() if target.is_file() else sorted(target.iterdir())
    with pytest.raises(ValueError, match=f"{name} is a symbolic link to .*target"):
        fit(tmp_path / "runs", SCAFFOLD(), rounds=2, ckpt_path=str(run))
    assert before == (target.read_bytes() if target.is_file() else sorted(target.iterdir()))


def test_no_tracker_writes_through_a_link_out_of_the_run(tmp_path: Path) -> None:
    """The link may be anywhere in the run's folder. Links to files of the run, and links that W&B makes, are allowed."""

    def logged(rounds: int, ckpt_path: Path | None = None) -> flcog.FederatedTrainer:
        logger = CSVLogger("logs", name="csv", version=0)
        trainer = flcog.FederatedTrainer(rounds, local_steps=1, logger=logger, accelerator="cpu", default_root_dir=tmp_path)
        trainer.fit(classifier(), TinyData(), ckpt_path and str(ckpt_path))
        return trainer

    run, target = logged(1).run_dir, tmp_path / "target"
    assert run is not None
    target.write_text("mine")
    (run / "wandb/offline-run/files").mkdir(parents=True)
    (run / "wandb/offline-run/files/model.py").symlink_to(target)
    (run / "logs/latest").symlink_to("csv/version_0")
    assert logged(2, run).run.round == 2
    written = run / "logs/csv/version_0/metrics.csv"
    written.unlink()
    written.symlink_to(target)
    with pytest.raises(ValueError, match=r"version_0/metrics.csv is a symbolic link to .*target, and flcog writes"):
        logged(3, run)
    assert target.read_text() == "mine"


@pytest.mark.parametrize("command", [report, predict, export])
def test_no_command_writes_through_a_link_in_a_run(tmp_path: Path, command: Callable[[list[str]], None]) -> None:
    run, target = fit(tmp_path / "runs", rounds=1).run_dir, tmp_path / "target"
    assert run is not None
    target.write_text("mine")
    for name in ("report.html", "predictions.csv", "model.pt"):
        (run / name).symlink_to(target)
    with pytest.raises(ValueError, match="is a symbolic link"):
        command([str(run)])
    assert target.read_text() == "mine"
