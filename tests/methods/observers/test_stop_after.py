"""StopAfter: a run that is stopped and resumed equals a run without a stop, also if a schedule depends on the number of rounds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SGD, TinyData, fit, make_trainer, without_times

import flcog
from flcog.callbacks import DPFedAvg, StopAfter
from flcog.models import MLP


class Annealed(flcog.Classifier):
    """A module whose learning rate falls to 0 over all rounds."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs or 0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}


def annealed() -> Annealed:
    torch.manual_seed(0)
    return Annealed(MLP(6, (8,), 3), optimizer=SGD)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_it_ends_a_run_that_goes_on_as_if_it_had_not_stopped(executor: Any, tmp_path: Path) -> None:
    def trained(where: str, rounds: int, *callbacks: flcog.Callback, ckpt_path: str | None = None) -> flcog.FederatedTrainer:
        trainer = make_trainer(tmp_path / where, *callbacks, rounds=rounds, eval_every=1, executor=executor)
        trainer.fit(annealed(), TinyData(), ckpt_path)
        return trainer

    whole, short = trained("whole", 4), trained("short", 2)
    stopped = trained("stopped", 4, StopAfter(2))
    assert without_times(stopped.history) == without_times(whole.history)[:2] != without_times(short.history)
    again = trained("stopped", 4, StopAfter(2), ckpt_path="last")
    assert len(again.history) == 2, "it has stopped already"
    resumed = trained("stopped", 4, ckpt_path="last")
    assert without_times(resumed.history) == without_times(whole.history)
    assert all(torch.equal(value, resumed.state[name]) for name, value in whole.state.items())


def test_a_private_run_keeps_the_noise_of_all_its_rounds(tmp_path: Path) -> None:
    def private() -> DPFedAvg:
        return DPFedAvg(clip=1.0, target_epsilon=20.0, delta=0.1, repeatable=True)

    whole = fit(tmp_path / "whole", private(), rounds=3)
    fit(tmp_path / "stopped", private(), StopAfter(1), rounds=3)
    resumed = fit(tmp_path / "stopped", private(), rounds=3, ckpt_path="last")
    assert without_times(resumed.history) == without_times(whole.history)
