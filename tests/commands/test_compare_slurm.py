"""``flcog compare --launcher slurm`` with simulated queues. tests/queues/test_slurm.py uses a real Slurm."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from commands.comparisons import QUICKSTART, fake_run, table, table_file
from flcog.commands.cli import main
from flcog.commands.compare import slurm
from flcog.commands.compare.runs import Run, runs_of
from flcog.commands.compare.slurm import ENDED, JOB, Job, SlurmLauncher

End = Callable[[Run], Any]


def two(folder: Path) -> list[Run]:
    folder.mkdir(exist_ok=True)
    return runs_of(table(folder), folder / "out")


def finishes(run: Run) -> None:
    fake_run(run, [0.5], finished=True)


def note(run: Run, name: str, text: str) -> None:
    (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (run.folder / name).write_text(text)


def preempted(run: Run) -> None:
    note(run, ENDED, "")


def killed(_: Run) -> None:
    """Leave no note of the job's end."""


def trains_one_more(run: Run) -> None:
    fake_run(run, [0.5] * (len(run.history) + 1))


def fails(run: Run) -> None:
    note(run, ENDED, "trainer.rounds must be at least 1")


class MadeUp(SlurmLauncher):
    """A simulated queue whose jobs end at once. The functions ``ends`` end the jobs in the order of their submission."""

    every = 0.0

    def __init__(self, *ends: End, looks: Sequence[Any] | Iterator[Any] = (), jobs: int = 9) -> None:
        super().__init__(jobs)
        self.ends, self.looks, self.submitted = iter(ends), iter(looks), list[str]()

    def _jobs(self) -> Any:
        return next(self.looks, set())

    def _send(self, run: Run) -> str | None:
        self.submitted.append(run.row)
        next(self.ends)(run)
        return str(len(self.submitted))

    def errors(self, todo: list[Run]) -> list[tuple[str, str]]:
        return sorted((ended.run.row, ended.error) for ended in self.run(todo, lambda run: False))


def test_preempted_and_killed_jobs_are_submitted_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = MadeUp(preempted, killed, killed, finishes, finishes)
    assert queue.errors(two(tmp_path)) == [("A", ""), ("B", "")] and sorted(queue.submitted) == ["A", "A", "A", "B", "B"]
    assert "A · seed 0: job 1 was stopped after round 0, submitted again as job 3" in capsys.readouterr().out


def test_a_job_without_new_rounds_is_submitted_again_three_times(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    ((_, error),) = MadeUp(*[preempted] * 4).errors([a])
    assert error.startswith("job 4 was stopped, and so were 3 before it without a new round: see ") and str(a.folder) in error
    assert MadeUp(*[preempted] * 3, trains_one_more, *[preempted] * 3, finishes).errors([b]) == [("B", "")], (
        "new rounds allow three more"
    )


def test_an_error_of_a_run_is_not_tried_again(tmp_path: Path) -> None:
    assert MadeUp(fails, finishes).errors(two(tmp_path)) == [("A", "trainer.rounds must be at least 1"), ("B", "")]


def test_a_queue_that_does_not_answer_is_not_an_empty_queue(tmp_path: Path) -> None:
    (run, _) = two(tmp_path)

    def looks() -> Iterator[set[str] | None]:
        yield from [{"1"}, None, None, {"1"}]
        finishes(run)
        yield set()

    queue = MadeUp(killed, looks=looks())
    assert queue.errors([run]) == [("A", "")] and queue.submitted == ["A"]


def test_a_comparison_started_again_waits_for_the_jobs_of_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = two(tmp_path)
    note(both[0], JOB, "17")

    def looks() -> Iterator[set[str]]:
        yield from [{"17"}] * 3
        finishes(both[0])
        yield set()

    queue = MadeUp(finishes, looks=looks())
    assert queue.errors(both) == [("A", ""), ("B", "")] and queue.submitted == ["B"]
    assert "A · seed 0: job 17 is in the queue" in capsys.readouterr().out


def test_a_signal_leaves_the_jobs_in_the_queue(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    queue = MadeUp(killed, killed, looks=iter(lambda: queue.stop(signal.SIGTERM, None) or {"1", "2"}, None))
    assert queue.errors(two(tmp_path)) == [] and queue.signal == signal.SIGTERM
    said = "SIGTERM: submitted jobs continue, and the same command collects their results; scancel 1 2 ends"
    assert said in capfd.readouterr().err


# On a node ----------------------------------------------------------------------------------------------------------------------------


class Ends:
    """The process of a run, which has already ended."""

    def __init__(self, code: int) -> None:
        self.code = code

    def wait(self) -> int:
        return self.code


def test_a_job_notes_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a signal or another process stopped has no error, and is submitted again."""
    run, handlers = two(tmp_path)[0], {number: signal.getsignal(number) for number in slurm.signals.available()}
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "3")
    monkeypatch.setenv("SLURM_JOB_NAME", "flcog-A")
    note(run, ENDED, "of an earlier job")
    busy = b"flcog: error: x is being trained by process 7 on host since then: wait until that has ended or stop it\n"
    ends = iter([(75, b"stopped"), (-9, b""), (2, busy), (2, b"flcog: error: bad\n"), (0, b"")])

    def start(run: Run, threads: int, output: Any) -> Ends:
        assert threads == 3 and not (run.folder / ENDED).exists() and os.environ["SLURM_JOB_NAME"] == "bash"
        os.kill(os.getpid(), signal.SIGTERM)  # Slurm sends it to all processes of the job
        code, said = next(ends)
        output.write(said)
        fake_run(run, [0.5])
        return Ends(code)

    monkeypatch.setattr(slurm, "start", start)
    monkeypatch.setattr(slurm, "PATIENCE", 0.0)
    try:
        for error in ("", "", "", "bad", ""):
            Job(run)()
            assert (run.folder / ENDED).read_text() == error
        assert run.finished
        Job(run)()  # nothing is left to do
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


# Programs of Slurm --------------------------------------------------------------------------------------------------------------------


def programs(folder: Path, **scripts: str) -> str:
    """A PATH with these programs in addition to the usual ones."""
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_the_job_asks_for_the_resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f'cp "$1" {tmp_path}/script; echo Submitted batch job 12'
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", sbatch=script, squeue='printf "12\\n13\\n"', srun=":"))
    (run, _) = two(tmp_path)
    run.folder.mkdir(parents=True)
    launcher = SlurmLauncher(1, "fast", "1-00:00:00", 2)
    launcher.begin(run)
    assert (run.folder / JOB).read_text() == "12" and launcher._jobs() == {"12", "13"} and launcher.look(run) is None
    text = (tmp_path / "script").read_text()
    for option in ("partition=fast", "time=1-00:00:00", "gpus-per-node=2", "job-name=flcog-A-seed0", "requeue"):
        assert f"#SBATCH --{option}\n" in text
    assert f"{sys.executable} -P -u -m submitit" in text


REFUSES = "echo 'sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed' >&2; exit 1"


@pytest.mark.parametrize(
    ("scripts", "options", "message"),
    [
        (
            {},
            ["--launcher", "slurm"],
            'sbatch refuses the job of A · seed 0: Could not detect "srun", are you indeed on a slurm cluster?',
        ),
        (
            {"sbatch": REFUSES, "squeue": ":", "srun": ":"},
            ["--launcher", "slurm"],
            "sbatch refuses the job of A · seed 0: sbatch: error: invalid partition specified: x",
        ),
        ({}, ["--partition", "x"], "--partition is for jobs of a cluster: add --launcher slurm, or leave --partition out"),
    ],
)
def test_a_machine_without_slurm_is_one_line(
    scripts: dict[str, str],
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", **scripts).partition(":")[0] + ":/bin" * bool(scripts))
    path = table_file(tmp_path, configs=[QUICKSTART])
    with pytest.raises(SystemExit):
        main(["compare", str(path), "--out", str(tmp_path / "out"), *options])
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"flcog: error: {message}")
