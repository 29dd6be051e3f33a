"""``ckpt_path="auto"``: one command starts a run and, given again, resumes it."""

from pathlib import Path

import pytest
import torch
from harness import TinyData, classifier, fit, make_trainer, without_times

import flcog
from flcog.callbacks import FedProx


def runs_in(root: Path) -> list[Path]:
    return sorted(root.glob("*/run.yaml"))


def test_auto_starts_a_run_and_then_resumes_it(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", rounds=4)
    for rounds in (2, 4, 4):  # the last finds no round left
        again = fit(tmp_path / "auto", rounds=rounds, ckpt_path="auto")
    assert len(runs_in(tmp_path / "auto")) == 1 and again.round == 4
    assert without_times(again.history) == without_times(whole.history)
    assert all(torch.equal(value, whole.params[name]) for name, value in again.params.items())


def test_auto_finds_the_run_of_the_same_configuration_among_others(tmp_path: Path) -> None:
    mine = fit(tmp_path, rounds=1, local_steps=3).run_dir
    fit(tmp_path, rounds=1, local_steps=2)
    fit(tmp_path, FedProx(mu=0.1), rounds=1, local_steps=3)
    assert fit(tmp_path, rounds=2, local_steps=3, ckpt_path="auto").run_dir == mine
    assert len(runs_in(tmp_path)) == 3


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"local_steps": 3}, r"trainer\.local_steps was 4, is 3"),
        ({"seed": 1}, "seed was 0, is 1"),
    ],
)
def test_auto_among_other_configurations_says_the_difference(tmp_path: Path, changed: dict, difference: str) -> None:
    fit(tmp_path, rounds=1)
    with pytest.raises(ValueError, match=rf"has no run of this configuration \(.*, {difference}\)\. Choose") as refusal:
        fit(tmp_path, rounds=2, ckpt_path="auto", **changed)
    assert "\n" not in str(refusal.value) and len(runs_in(tmp_path)) == 1


class StartsASecond(flcog.Callback):
    """Starts the same run once more in the first round, before there is a checkpoint."""

    def __init__(self, root: Path) -> None:
        self.root, self.refusal = root, ""

    def on_round_start(self, run: flcog.Run, round: int, cohort: list[int]) -> None:
        if round == 1:
            with pytest.raises(ValueError, match="is being trained by another process: wait until") as refusal:
                make_trainer(self.root, rounds=2).fit(classifier(), TinyData(), ckpt_path="auto")
            self.refusal = str(refusal.value)


def test_of_two_that_start_at_once_one_runs(tmp_path: Path) -> None:
    second = StartsASecond(tmp_path)
    assert fit(tmp_path, second, rounds=2, ckpt_path="auto").round == 2
    assert second.refusal and "\n" not in second.refusal and len(runs_in(tmp_path)) == 1
    assert fit(tmp_path, rounds=3, ckpt_path="auto").round == 3, "a folder whose run has ended is free"


def test_auto_starts_from_given_weights_once(tmp_path: Path) -> None:
    weights = fit(tmp_path / "other", rounds=1).run_dir
    assert weights is not None

    def train(rounds: int) -> flcog.FederatedTrainer:
        trainer = make_trainer(tmp_path / "auto", rounds=rounds)
        trainer.fit(classifier(), TinyData(), ckpt_path="auto", init_from=str(weights / "checkpoints/last.ckpt"))
        return trainer

    first, second = train(1), train(2)
    assert without_times(second.history)[:1] == without_times(first.history) and len(second.history) == 2
    assert len(runs_in(tmp_path / "auto")) == 1
