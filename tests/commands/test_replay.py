"""A replay of a client's round repeats the run's steps, also from an earlier checkpoint."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from engine.test_faithful_step import Lit
from harness import TinyData, fit, make_trainer
from torch import nn

from flcog.callbacks import Checkpoint
from flcog.commands.replay import replay_client


class Plateau(Lit):
    """Its learning rate falls when a figure of the round does not."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("error", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=10.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "error"}}


class Notes(L.Callback):
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.started = True


OPTIONS: dict[str, Any] = {"rounds": 4, "local_steps": 3, "eval_every": 1}


def steps(
    root: Path, run: Path, module: Any, capsys: pytest.CaptureFixture[str], *callbacks: L.Callback
) -> tuple[str, list[str]]:
    trainer = make_trainer(root, *callbacks, **OPTIONS)
    trainer.prepare(module, TinyData())
    client = trainer.sample(3)[0]
    capsys.readouterr()
    replay_client(make_trainer(root, *callbacks, **OPTIONS), type(module)(), TinyData(), run, 3, client)
    said = capsys.readouterr().out
    return said, [line for line in said.splitlines() if line.startswith(("  step", "  delta"))]


def test_schedulers_follow_the_figures_of_the_rounds_between(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fit(tmp_path, Checkpoint(keep_every_n_rounds=1), module=Plateau(), data=TinyData(), **OPTIONS).run_dir
    assert run is not None
    said, near = steps(tmp_path, run, Plateau(), capsys)
    assert "from the model after round 3" in said and len(near) > 3
    for kept in (run / "checkpoints").glob("round-*"):
        kept.unlink()
    said, far = steps(tmp_path, run, Plateau(), capsys)
    assert "from the initial model" in said and far == near


def test_hooks_of_rounds_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fit(tmp_path, Notes(), module=Lit(), data=TinyData(), **OPTIONS).run_dir
    assert run is not None
    said, _ = steps(tmp_path, run, Lit(), capsys, Notes())
    assert (
        "Notes.on_train_epoch_start: a replay does not call these. If they change the training, its steps are not the run's"
        in said
    )
