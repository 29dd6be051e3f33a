"""Only one process at a time trains a run, and a metrics.csv with rows of two processes is reported."""

import signal
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from harness import TinyData, classifier, fit, make_trainer
from two_processes import finish, started, wait_for

import flcog
from flcog.core.writer_lock import WriterLock
from run.killed_runs import killed
from run.test_resume import run

HELD = "is being trained by another process: wait until that has ended or stop it, or"


class GoesOnTwice(flcog.Callback):
    """At the end of round 2, it asks a second trainer to resume the same run."""

    def __init__(self, root: Path) -> None:
        self.root, self.refusals = root, []  # type: tuple[Path, list[str]]

    def on_round_end(self, run: flcog.Run, round: int, metrics: dict[str, float]) -> None:
        if round == 2:
            for path in ("last", str(run.directory)):
                with pytest.raises(ValueError, match=HELD) as refusal:
                    make_trainer(self.root, rounds=5).fit(classifier(), TinyData(), ckpt_path=path)
                self.refusals.append(str(refusal.value))


def files_of(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    twice = GoesOnTwice(tmp_path)
    trainer = fit(tmp_path, twice, rounds=3)
    assert len(twice.refusals) == 2 and "\n" not in twice.refusals[0]
    assert [row["round"] for row in trainer.history] == [1, 2, 3]
    assert fit(tmp_path, rounds=4, ckpt_path="last").round == 4, "a run that has ended is free"


def test_a_refused_writer_touches_nothing(tmp_path: Path) -> None:
    run = fit(tmp_path, rounds=2).run_dir
    assert run is not None
    before = files_of(run)
    with FileLock(run / ".lock"), pytest.raises(ValueError, match="is being trained by another process: wait"):
        fit(tmp_path, rounds=3, ckpt_path="last")
    assert files_of(run) == before


def test_the_right_to_write_ends_with_the_fit_however_that_ends(tmp_path: Path) -> None:
    fit(tmp_path, rounds=1)
    killed(tmp_path, at=2, rounds=2, ckpt_path="last")
    with pytest.raises(ValueError, match="seed was 0, is 1"):
        fit(tmp_path, rounds=2, seed=1, ckpt_path="last")
    trainer = make_trainer(tmp_path, rounds=2)
    for _ in range(2):
        trainer.fit(classifier(), TinyData(), ckpt_path="last")
    assert trainer.run.round == 2


def test_a_run_can_be_tested_while_it_is_trained(tmp_path: Path) -> None:
    run = fit(tmp_path, rounds=1).run_dir
    assert run is not None
    lock = WriterLock()
    assert lock.take(run) is None
    assert make_trainer(tmp_path).test(classifier(), TinyData(), ckpt_path="last")
    lock.release()


def is_locked(folder: Path) -> bool:
    try:
        with FileLock(folder / ".lock", blocking=False):
            return False
    except Timeout:
        return True


@pytest.mark.slow
def test_of_two_processes_that_go_on_with_a_run_one_trains_it(tmp_path: Path) -> None:
    run(tmp_path, rounds=2)
    first = started(run, tmp_path, str(tmp_path), rounds=4, ckpt="last", sleep=60.0, devices=2)
    (folder,) = (tmp_path / "runs").iterdir()
    wait_for(lambda: is_locked(folder))
    second = started(run, tmp_path, str(tmp_path), rounds=4, ckpt="last", devices=2)
    output, _ = second.communicate(timeout=120)
    assert second.returncode != 0 and "is being trained by another process" in output
    first.send_signal(signal.SIGKILL)
    first.wait()
    finish(started(run, tmp_path, str(tmp_path), rounds=4, ckpt="last"))
    rows = (folder / "metrics.csv").read_text().splitlines()[1:]
    assert [row.partition(",")[0] for row in rows] == ["1", "2", "3", "4"]
