"""When checkpoints are written, and how a run resumes from one."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import TinyData, assert_close, classifier, fit, make_trainer, without_times

from flcog.callbacks import SCAFFOLD, Ditto, FineTune, KeepLocal
from flcog.method import Method
from flcog.run import checkpoint
from flcog.run.observers.checkpoint import Checkpoint
from run.killed_runs import killed


def test_last_is_written_every_n_rounds_and_at_the_end(tmp_path: Path) -> None:
    run = killed(tmp_path / "killed", Checkpoint(every_n_rounds=2), at=4, rounds=5)
    assert checkpoint.read(run / "checkpoints/last.ckpt")["round"] == 2
    for every in (0, 2):
        trainer = fit(tmp_path / str(every), Checkpoint(every_n_rounds=every), rounds=3)
        assert trainer.run_dir is not None
        assert checkpoint.read(trainer.run_dir / "checkpoints/last.ckpt")["round"] == 3


@pytest.mark.slow
def test_a_run_goes_on_from_a_kept_checkpoint_again_and_again(tmp_path: Path) -> None:
    """Checkpoints share the files of clients' states, and the files of a kept checkpoint survive every later round."""
    keep = partial(Checkpoint, every_n_rounds=3, keep_every_n_rounds=2)
    whole = fit(tmp_path / "whole", SCAFFOLD(), keep(), rounds=6)
    assert whole.run_dir is not None
    folder = whole.run_dir / "checkpoints"
    assert sorted(path.name for path in folder.glob("round-*")) == [f"round-{n:06d}.ckpt" for n in (2, 4, 6)]
    for start in (2, 4, 2):
        again = fit(tmp_path / "whole", SCAFFOLD(), keep(), rounds=6, ckpt_path=str(folder / f"round-{start:06d}.ckpt"))
        assert_close(again.params, whole.params, rtol=0)
        assert without_times(again.history) == without_times(whole.history)
    referred = {name for path in folder.glob("*.ckpt") for name in checkpoint.read(path).get("clients", {}).values()}
    assert {path.name for path in (folder / "clients").iterdir()} == referred


@pytest.mark.parametrize("method", [Ditto(), KeepLocal(), FineTune()], ids=repr)
def test_the_best_checkpoint_has_the_clients_own_models_of_its_round(method: Method, tmp_path: Path) -> None:
    data, first = TinyData(client_test=0.3, client_val=0.2), Checkpoint("val/loss", "max", keep_every_n_rounds=2)
    trainer = fit(tmp_path, method, first, data=data, rounds=4, eval_every=1)
    assert first.best_round == 1
    resumed = fit(tmp_path, method, first, data=data, rounds=5, eval_every=1, ckpt_path=str(trainer.run_dir))
    best: Any = resumed.checkpoint_callback
    assert best is first and best.best_model_path == str(resumed.run_dir / "checkpoints/best.ckpt")
    again = make_trainer(tmp_path, method).test(classifier(), data, "best")
    assert again == {name: trainer.history[0][name] for name in again}


def test_a_killed_run_says_how_to_go_on_once_it_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path / "early", at=1)
    assert "go on" not in capsys.readouterr().out
    run = killed(tmp_path / "late", at=3)
    printed = capsys.readouterr().out
    assert "The run can go on after round 2:" in printed
    command = f"trainer.fit(model, datamodule, ckpt_path={str(run)!r})"
    assert command in printed
    trainer = fit(tmp_path / "other")
    capsys.readouterr()
    eval(command, {"trainer": trainer, "model": classifier(), "datamodule": TinyData()})
    assert trainer.run_dir == run and trainer.run.round == 3
    with pytest.raises(ValueError, match="no checkpoint at"):
        trainer.fit(classifier(), TinyData(), str(tmp_path / "nowhere"))
    assert "go on" not in capsys.readouterr().out.split("Test its")[-1]
