"""Runs that die go on, with the same numbers; checkpoints fit any number of processes."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from harness import TinyData, classifier, make_trainer

import flcog
from flcog import checkpoint
from flcog.callbacks import SCAFFOLD, Checkpoint, FedAvgM

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import torch, time
torch.set_num_threads(1)
from harness import TinyData, classifier, make_trainer
from flcog.callbacks import SCAFFOLD, FedAvgM
import flcog

class Slow(flcog.Callback):
    def on_round_start(self, trainer, round, cohort):
        time.sleep({sleep})

trainer = make_trainer({root!r}, SCAFFOLD(), FedAvgM(), Slow(), rounds={rounds}, eval_every=1, devices={devices})
trainer.fit(classifier(), TinyData(), ckpt_path={ckpt!r})
"""


def start(root: Path, rounds: int, devices: int = 1, ckpt: str | None = None, sleep: float = 0.0) -> subprocess.Popen[str]:
    """A run in a process of its own."""
    script = root / "script.py"
    root.mkdir(exist_ok=True)
    tests = str(Path(__file__).parent)
    script.write_text(SCRIPT.format(tests=tests, root=str(root / "runs"), rounds=rounds, devices=devices, ckpt=ckpt, sleep=sleep))
    return subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def here(root: Path, rounds: int, ckpt: str | None = None) -> None:
    """The same run in this process: every import of torch that can be spared is."""
    trainer = make_trainer(root / "runs", SCAFFOLD(), FedAvgM(), rounds=rounds, eval_every=1)
    trainer.fit(classifier(), TinyData(), ckpt_path=ckpt)


def finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output


def outcome(root: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The final parameters, and metrics.csv without its times."""
    (run,) = (root / "runs").iterdir()
    rows = (run / "metrics.csv").read_text().splitlines()
    keep = [i for i, name in enumerate(rows[0].split(",")) if not name.startswith("time/")]
    return checkpoint.read(run / "checkpoints" / "last.ckpt")["params"], [
        ",".join(row.split(",")[i] for i in keep) for row in rows
    ]


def test_a_killed_run_resumes_bitwise(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    here(whole, rounds=8)
    process = start(killed, rounds=8, sleep=0.15)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        written = list((killed / "runs").glob("*/metrics.csv"))
        if written and len(written[0].read_text().splitlines()) >= 4:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "the run was over before it could be killed"
    here(killed, rounds=8, ckpt="last")
    (params, rows), (resumed_params, resumed_rows) = outcome(whole), outcome(killed)
    assert rows == resumed_rows
    assert all(torch.equal(params[name], resumed_params[name]) for name in params)


@pytest.mark.slow
def test_two_processes_train_as_one_does_from_the_start_and_from_its_checkpoint(tmp_path: Path) -> None:
    whole, double, mixed = tmp_path / "whole", tmp_path / "double", tmp_path / "mixed"
    here(whole, rounds=8)
    params, rows = outcome(whole)
    finish(start(double, rounds=8, devices=2))
    here(mixed, rounds=3)
    finish(start(mixed, rounds=8, devices=2, ckpt="last"))
    for other in (double, mixed):
        other_params, other_rows = outcome(other)
        for name, value in params.items():
            torch.testing.assert_close(other_params[name], value, rtol=1e-9, atol=1e-12)
        assert len(other_rows) == len(rows)
        for ours, theirs in zip(rows[1:], other_rows[1:], strict=True):
            assert [float(x) for x in ours.split(",")] == pytest.approx([float(x) for x in theirs.split(",")], rel=1e-6)


def test_a_finished_run_can_be_extended(tmp_path: Path) -> None:
    make_trainer(tmp_path / "a", rounds=4).fit(classifier(), TinyData())
    short = make_trainer(tmp_path / "b", rounds=2)
    short.fit(classifier(), TinyData())
    longer = make_trainer(tmp_path / "b", rounds=4)
    longer.fit(classifier(), TinyData(), ckpt_path="last")
    assert longer.run_dir == short.run_dir.resolve() and [row["round"] for row in longer.history] == [1, 2, 3, 4]


def test_rows_after_the_last_checkpoint_are_run_again(tmp_path: Path) -> None:
    observers = [Checkpoint(every_n_rounds=2)]
    whole = make_trainer(tmp_path / "whole", SCAFFOLD(), *observers, rounds=4)
    whole.fit(classifier(), TinyData())

    class Dies(flcog.Callback):
        def on_round_end(self, trainer: flcog.FederatedTrainer, round: int, metrics: dict[str, float]) -> None:
            if round == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path / "dies", SCAFFOLD(), *observers, Dies(), rounds=4).fit(classifier(), TinyData())
    resumed = make_trainer(tmp_path / "dies", SCAFFOLD(), *observers, rounds=4)
    resumed.fit(classifier(), TinyData(), ckpt_path="last")
    assert [row["round"] for row in resumed.history] == [1, 2, 3, 4]
    assert all(torch.equal(whole.params[name], resumed.params[name]) for name in whole.params)


def test_kept_checkpoints_keep_their_clients(tmp_path: Path) -> None:
    """Client states live in one file per round; an old checkpoint's are not pruned under it."""
    trainer = make_trainer(tmp_path, SCAFFOLD(), Checkpoint(keep_every_n_rounds=2), rounds=6, clients_per_round=3)
    trainer.fit(classifier(), TinyData())
    assert trainer.run_dir is not None
    kept = trainer.run_dir / "checkpoints" / "round-000002.ckpt"
    again = make_trainer(tmp_path, SCAFFOLD(), rounds=6, clients_per_round=3)
    again.fit(classifier(), TinyData(), ckpt_path=str(kept))
    assert all(torch.equal(trainer.params[name], again.params[name]) for name in trainer.params)


def test_the_method_list_must_be_the_same(tmp_path: Path) -> None:
    make_trainer(tmp_path, SCAFFOLD(), rounds=1).fit(classifier(), TinyData())
    with pytest.raises(ValueError, match=r"run with methods \['SCAFFOLD'\]; this run has \['FedAvgM'\]"):
        make_trainer(tmp_path, FedAvgM(), rounds=2).fit(classifier(), TinyData(), ckpt_path="last")
    with pytest.raises(ValueError, match="no run under"):
        make_trainer(tmp_path / "empty", rounds=2).fit(classifier(), TinyData(), ckpt_path="last")


def test_the_best_model_can_be_tested_but_not_resumed(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rounds=3, eval_every=1)
    trainer.fit(classifier(), TinyData())
    best = max(row["test/accuracy"] for row in trainer.history)
    metrics = make_trainer(tmp_path).test(classifier(), TinyData(), ckpt_path="best")
    assert metrics["test/accuracy"] == pytest.approx(best)
    with pytest.raises(ValueError, match="a model to evaluate, not a run to go on with"):
        make_trainer(tmp_path, rounds=4).fit(classifier(), TinyData(), ckpt_path="best")
