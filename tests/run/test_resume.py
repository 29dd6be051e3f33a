"""Killed runs resume with the same numbers, and checkpoints fit any number of processes."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from harness import TinyData, classifier, fit, make_trainer
from two_processes import finish, rounds_done, started, wait_for

import flcog
from flcog.callbacks import SCAFFOLD, Checkpoint, FedAvgM
from flcog.method import Cohort, Messages, Params, Slot
from flcog.run import checkpoint
from run.killed_runs import killed


class Drifts(flcog.Method):
    """A method whose server step and state differ in every process but the first, as on an accelerator they may."""

    def init_server(self, params: Params) -> Slot:
        return {"steps": torch.tensor(0), "sum": torch.zeros(())}

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        steps = server["steps"] + 1 + rank
        return {name: value * (1 + steps * rank) for name, value in delta.items()}, {"steps": steps, "sum": server["sum"] + rank}


class Slow(flcog.Callback):
    def __init__(self, sleep: float) -> None:
        self.sleep = sleep

    def on_round_start(self, run: flcog.Run, round: int, cohort: Sequence[int]) -> None:
        time.sleep(self.sleep)


def run(root: Path | str, rounds: int, ckpt: str | None = None, sleep: float = 0.0, **processes: int) -> None:
    """Trains in this process, because another process would have to import torch."""
    callbacks = [SCAFFOLD(), FedAvgM(), Drifts(), Slow(sleep)]
    trainer = make_trainer(Path(root) / "runs", *callbacks, rounds=rounds, eval_every=1, **processes)
    trainer.fit(classifier(), TinyData(), ckpt_path=ckpt)


def outcome(root: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The final parameters, and metrics.csv without its times."""
    (run,) = (root / "runs").glob("*/")
    rows = (run / "metrics.csv").read_text().splitlines()
    keep = [i for i, name in enumerate(rows[0].split(",")) if not name.startswith("time/")]
    return checkpoint.read(run / "checkpoints" / "last.ckpt")["params"], [
        ",".join(row.split(",")[i] for i in keep) for row in rows
    ]


@pytest.mark.slow
def test_a_killed_run_resumes_bitwise(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole, rounds=8)
    process = started(run, killed, str(killed), rounds=8, sleep=0.15)
    wait_for(lambda: rounds_done(killed / "runs") >= 3 or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "the run was over before it could be killed"
    run(killed, rounds=8, ckpt="last")
    (params, rows), (resumed_params, resumed_rows) = outcome(whole), outcome(killed)
    assert rows == resumed_rows
    assert all(torch.equal(params[name], resumed_params[name]) for name in params)


@pytest.mark.slow
def test_two_processes_train_as_one_does_from_the_start_and_from_its_checkpoint(tmp_path: Path) -> None:
    whole, double, mixed = tmp_path / "whole", tmp_path / "double", tmp_path / "mixed"
    run(whole, rounds=8)
    params, rows = outcome(whole)
    finish(started(run, double, str(double), rounds=8, devices=2))
    run(mixed, rounds=3)
    finish(started(run, mixed, str(mixed), rounds=8, devices=2, ckpt="last"))
    for other in (double, mixed):
        other_params, other_rows = outcome(other)
        for name, value in params.items():
            torch.testing.assert_close(other_params[name], value, rtol=1e-9, atol=1e-12)
        assert len(other_rows) == len(rows)
        for ours, theirs in zip(rows[1:], other_rows[1:], strict=True):
            assert [float(x) for x in ours.split(",")] == pytest.approx([float(x) for x in theirs.split(",")], rel=1e-6)


@pytest.mark.slow
def test_two_processes_on_one_device_are_two_processes(tmp_path: Path) -> None:
    for name, options in {"two": {"devices": 2}, "shared": {"processes_per_device": 2}}.items():
        finish(started(run, tmp_path / name, str(tmp_path / name), rounds=4, **options))
    (params, rows), (shared_params, shared_rows) = outcome(tmp_path / "two"), outcome(tmp_path / "shared")
    assert rows == shared_rows
    assert all(torch.equal(params[name], shared_params[name]) for name in params)


def test_a_finished_run_can_be_extended(tmp_path: Path) -> None:
    short = fit(tmp_path, rounds=2)
    longer = fit(tmp_path, rounds=4, ckpt_path="last")
    assert longer.run_dir == short.run_dir.resolve() and [row["round"] for row in longer.history] == [1, 2, 3, 4]


def test_rows_after_the_last_checkpoint_are_run_again(tmp_path: Path) -> None:
    callbacks = [SCAFFOLD(), Checkpoint(every_n_rounds=2)]
    whole = fit(tmp_path / "whole", *callbacks, rounds=4)
    killed(tmp_path / "killed", *callbacks, at=4, rounds=4)
    resumed = fit(tmp_path / "killed", *callbacks, rounds=4, ckpt_path="last")
    assert [row["round"] for row in resumed.history] == [1, 2, 3, 4]
    assert all(torch.equal(whole.params[name], resumed.params[name]) for name in whole.params)


def test_the_method_list_must_be_the_same(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, SCAFFOLD(), rounds=1)
    trainer.fit(classifier(), TinyData())
    with pytest.raises(ValueError, match=r"methods was \['SCAFFOLD'\], is \['FedAvgM'\]"):
        make_trainer(tmp_path, FedAvgM(), rounds=2).fit(classifier(), TinyData(), ckpt_path=str(trainer.run_dir))
    with pytest.raises(ValueError, match="no run under"):
        make_trainer(tmp_path / "empty", rounds=2).fit(classifier(), TinyData(), ckpt_path="last")


def test_the_best_model_can_be_tested_but_not_resumed(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rounds=3, eval_every=1)
    trainer.fit(classifier(), TinyData())
    best = max(row["test/accuracy"] for row in trainer.history)
    metrics = make_trainer(tmp_path).test(classifier(), TinyData(), ckpt_path="best")
    assert metrics["test/accuracy"] == pytest.approx(best)
    with pytest.raises(ValueError, match="has only a model for evaluation"):
        make_trainer(tmp_path, rounds=4).fit(classifier(), TinyData(), ckpt_path="best")
