"""The first round that reaches a target, and the bytes sent until then."""

from pathlib import Path

import pytest
from harness import fit
from run.killed_runs import killed

from flcog.callbacks import DPFedAvg, PoissonSampling, RoundsToTarget, SystemModel
from flcog.core.text import human


def test_rounds_and_bytes_to_a_target_are_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = fit(tmp_path / "plain", eval_every=1, rounds=6)
    losses, accuracies = ([row[f"test/{name}"] for row in plain.history] for name in ("loss", "accuracy"))
    targets = [RoundsToTarget(losses[3], "test/loss"), RoundsToTarget(max(accuracies)), RoundsToTarget(1.0)]
    capsys.readouterr()
    trainer = fit(tmp_path / "targets", *targets, eval_every=1, rounds=6)
    printed = capsys.readouterr().out
    for column, reached in (
        (f"to_loss_{losses[3]:g}", 4),
        (f"to_accuracy_{max(accuracies):g}", 1 + accuracies.index(max(accuracies))),
    ):
        (row,) = [row for row in trainer.history if f"{column}/rounds" in row]
        assert row["round"] == row[f"{column}/rounds"] == reached
        up, down = (sum(r[f"comm/{way}_bytes"] for r in trainer.history[:reached]) for way in ("up", "down"))
        assert (row[f"{column}/up_bytes"], row[f"{column}/down_bytes"]) == (up, down)
        assert f"in round {reached}, after {human(up)} up and {human(down)} down" in printed
    assert not any(name.startswith("to_accuracy_1/") for row in trainer.history for name in row)
    assert "the main metric did not reach 1 in 6 rounds" in printed


def test_a_target_reached_before_a_resume_is_not_reached_again(tmp_path: Path) -> None:
    run = killed(tmp_path, RoundsToTarget(0.0), at=3, eval_every=1)
    trainer = fit(tmp_path, RoundsToTarget(0.0), eval_every=1, ckpt_path=str(run))
    assert [row.get("to_accuracy_0/rounds") for row in trainer.history] == [1, None, None]


def test_simulated_seconds_stand_beside_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = SystemModel(seconds_per_step=100.0, download=None, upload=None)
    trainer = fit(tmp_path, clock, RoundsToTarget(0.0), eval_every=2, rounds=2)
    assert trainer.history[1]["to_accuracy_0/simulated"] == 2 * 4 * 100
    assert "down and 800 simulated seconds" in capsys.readouterr().out


def test_a_private_run_tells_neither_bytes_nor_seconds_of_its_secret_cohorts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = DPFedAvg(clip=1.0, noise_multiplier=1.0, delta=1e-3)
    trainer = fit(tmp_path, private, PoissonSampling(rate=0.5), SystemModel(), RoundsToTarget(0.0), eval_every=1, rounds=1)
    assert [name for name in trainer.history[0] if name.startswith("to_")] == ["to_accuracy_0/rounds"]
    assert "test/accuracy reached 0 in round 1\n" in capsys.readouterr().out
