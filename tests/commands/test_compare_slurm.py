"""``flcog compare --launcher slurm`` with simulated queues. tests/queues/test_slurm.py uses a real Slurm."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flcog.commands.cli import main
from flcog.commands.compare import slurm, slurm_job
from flcog.commands.compare.plan import Cell, cells
from flcog.commands.compare.slurm import SlurmRunner
from flcog.commands.compare.slurm_job import Job, end_of
from flcog.commands.compare.slurm_queue import Queue, name_of
from flcog.commands.compare.table_file import read_table
from flcog.core.writer_lock import WriterLock


def table(folder: Path) -> list[Cell]:
    folder.mkdir(exist_ok=True)
    path = folder / "table.yaml"
    path.write_text("{rows: {A: , B: }}")
    both = cells(read_table(path), folder / "out", [])
    for cell in both:
        cell.files.claim()
    return both


def train(cell: Cell, rounds: int) -> None:
    """Write a run's files as if it had finished some rounds."""
    run = cell.folder / "run"
    run.mkdir(exist_ok=True)
    (run / "metrics.csv").write_text("round,test/accuracy\n" + "".join(f"{r},0.5\n" for r in range(1, rounds + 1)))


def end(cell: Cell, code: int, error: str = "") -> None:
    (cell.folder / "slurm").mkdir(exist_ok=True)
    (cell.folder / "slurm/ended").write_text(f"{code}\n{error}\n")


class MadeUp:
    """A simulated queue whose jobs end at once. The functions ``ends`` end the jobs in the order of their submission."""

    def __init__(self, *ends: Callable[[Cell], Any], looks: Sequence[Any] | Iterator[Any] = ()) -> None:
        self.ends, self.looks = iter(ends), iter(looks)
        self.submitted: list[str] = []

    def jobs(self) -> Any:
        return next(self.looks, {})

    def submit(self, cell: Cell) -> str:
        slurm_job.forget_end(cell.folder)
        self.submitted.append(cell.row)
        next(self.ends)(cell)
        return str(len(self.submitted))


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "LOOK_EVERY", 0.0)


def finishes(cell: Cell) -> None:
    train(cell, 1)
    cell.files.mark_finished("")
    end(cell, 0)


def preempted(cell: Cell) -> None:
    end(cell, 75, "stopped")


def killed_at_its_start(cell: Cell) -> None:
    end(cell, -signal.SIGUSR2, "exit status -12")


def killed(_: Cell) -> None:
    """Leave no note of the job's end."""


def results(queue: MadeUp, todo: list[Cell], jobs: int = 9) -> list[tuple[str, str | None]]:
    return sorted((cell.row, cell.error) for cell, _ in SlurmRunner(jobs, queue, {}).run(todo))  # type: ignore[arg-type]


def test_preempted_and_killed_jobs_are_submitted_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = MadeUp(preempted, killed, killed_at_its_start, finishes, finishes)
    assert results(queue, table(tmp_path)) == [("A", None), ("B", None)]
    assert sorted(queue.submitted) == ["A", "A", "A", "B", "B"]
    assert "A · seed 0: job 1 was stopped after round 0, submitted again as job 3" in capsys.readouterr().out


def test_a_job_without_new_rounds_is_submitted_again_three_times(tmp_path: Path) -> None:
    cell = table(tmp_path)[0]
    queue = MadeUp(*[preempted] * 4)
    ((_, error),) = results(queue, [cell])
    assert error and error.startswith("job 4 was stopped, and so were 3 before it without a new round: see ")
    assert str(cell.folder / "slurm") in error


def test_new_rounds_allow_three_more(tmp_path: Path) -> None:
    def trains_one_more(cell: Cell) -> None:
        train(cell, len(cell.history()) + 1)
        preempted(cell)

    queue = MadeUp(*[preempted] * 3, trains_one_more, *[preempted] * 3, finishes)
    assert results(queue, table(tmp_path)[:1]) == [("A", None)]
    queue = MadeUp(*[trains_one_more] * 9, finishes)
    assert results(queue, table(tmp_path)[1:]) == [("B", None)]


def test_an_error_of_a_run_is_not_tried_again(tmp_path: Path) -> None:
    queue = MadeUp(lambda cell: end(cell, 2, "trainer.rounds must be at least 1"), finishes)
    assert results(queue, table(tmp_path)) == [("A", "trainer.rounds must be at least 1"), ("B", None)]


def test_a_queue_that_does_not_answer_is_not_an_empty_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = table(tmp_path)[0]

    def looks() -> Iterator[dict[str, str] | None]:
        yield {}
        yield {name_of(cell): "1"}
        yield from [None] * 5
        yield {name_of(cell): "1"}
        finishes(cell)
        yield {}

    queue = MadeUp(killed, looks=looks())
    assert results(queue, [cell]) == [("A", None)] and queue.submitted == ["A"]
    assert capsys.readouterr().out.count("squeue gets no answer from slurmctld: waiting for it") == 1


def test_a_file_system_may_show_a_result_late(tmp_path: Path) -> None:
    cell = table(tmp_path)[0]

    def looks() -> Iterator[dict[str, str]]:
        yield {}
        yield {}  # the job has ended, but its result is not visible yet
        finishes(cell)
        yield {}

    queue = MadeUp(killed, looks=looks())
    assert results(queue, [cell]) == [("A", None)] and queue.submitted == ["A"]


def test_a_comparison_started_again_waits_for_the_jobs_of_the_last(tmp_path: Path) -> None:
    both = table(tmp_path)

    def looks() -> Iterator[dict[str, str]]:
        yield {name_of(both[0]): "17"}
        finishes(both[0])
        yield {}

    queue = MadeUp(finishes, looks=looks())
    assert results(queue, both) == [("A", None), ("B", None)] and queue.submitted == ["B"]


def test_a_job_with_other_settings_is_no_job_of_the_table(tmp_path: Path) -> None:
    """A comparison whose settings have changed would take its result for the table's."""
    both = table(tmp_path)
    both[0].identity = "0123456789"
    name = name_of(both[0])
    both[0].identity = "9876543210"
    error = "job 17 in the queue trains this run with other settings: scancel 17, or choose another --out"
    queue = MadeUp(finishes, looks=[{name: "17"}] * 9)
    assert results(queue, both) == [("A", error), ("B", None)] and queue.submitted == ["B"]


def test_a_cell_that_another_comparison_watches_is_left_to_it(tmp_path: Path) -> None:
    both, other = table(tmp_path), WriterLock()
    assert other.take(both[0].folder) is None
    queue = MadeUp(finishes)
    (_, busy), (_, none) = results(queue, both)
    other.release()
    assert busy and f"is being trained by process {os.getpid()}" in busy and "wait" not in busy and both[0].busy
    assert none is None and queue.submitted == ["B"]
    assert not list(tmp_path.rglob(".writer.yaml"))  # locks are released at the end


def test_no_more_jobs_than_asked_for_and_equal_runs_once(tmp_path: Path) -> None:
    both = table(tmp_path)
    for cell in both:
        cell.identity = "same"
    queue = MadeUp(finishes)
    assert results(queue, both, jobs=1) == [("A", None), ("B", None)]
    assert queue.submitted == ["A"] and both[1].files.source.path == both[0].folder.resolve()


def test_a_signal_leaves_the_jobs_in_the_queue(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cell = table(tmp_path)[0]
    runner = SlurmRunner(9, MadeUp(lambda _: runner.stop(signal.SIGTERM, None), looks=[{name_of(cell): "5"}]), {})
    runner._watched.append(slurm._Watched(cell, WriterLock(), job="5"))
    runner.stop(signal.SIGTERM, None)
    assert list(runner.run([cell])) == [] and runner.signal == signal.SIGTERM
    assert (
        "SIGTERM: submitted jobs continue, and the same command collects their results; scancel 5 ends" in capfd.readouterr().err
    )


def test_a_submission_that_ctrl_c_ends_is_no_refusal(tmp_path: Path) -> None:
    def interrupted(_: Cell) -> None:
        runner.stop(signal.SIGINT, None)
        raise ValueError("sbatch refuses")

    queue = MadeUp(interrupted, finishes)
    runner = SlurmRunner(9, queue, {})  # type: ignore[arg-type]
    assert list(runner.run(table(tmp_path))) == [] and runner.signal == signal.SIGINT
    assert queue.submitted == ["A"]


class Ends:
    """The process of a run, which has already ended."""

    def __init__(self, code: int) -> None:
        self.code = code

    def wait(self) -> int:
        return self.code


@pytest.fixture
def on_a_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in slurm_job.signals.available()}
    monkeypatch.setenv("SLURM_JOB_NAME", "flcog-A")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "3")
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_job_notes_its_end(tmp_path: Path, on_a_node: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, codes = table(tmp_path)[0], iter([75, 2, 0])
    end(cell, 7, "of an earlier job")

    def start(cell: Cell, threads: int, output: Any) -> Ends:
        assert threads == 3 and end_of(cell.folder) is None and os.environ["SLURM_JOB_NAME"] == "bash"
        os.kill(os.getpid(), signal.SIGTERM)  # Slurm sends it to all processes of the job
        output.write(b"flcog: error: bad\n")
        train(cell, 1)
        return Ends(next(codes))

    monkeypatch.setattr(slurm_job, "start", start)
    for code, error in ((75, "bad"), (2, "bad"), (0, "")):
        Job(cell)()
        assert end_of(cell.folder) == (code, error) and cell.finished == (code == 0)
    Job(cell)()  # the cell is finished, so nothing is left to do
    assert end_of(cell.folder) == (0, "")


def test_a_job_waits_for_the_process_of_a_lost_node(tmp_path: Path, on_a_node: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, waits = table(tmp_path)[0], []

    def start(cell: Cell, threads: int, output: Any) -> Ends:
        if len(waits) < 2:
            output.write(
                b"flcog: error: x is being trained by process 7 on host since then: wait until that has ended or stop it\n"
            )
            return Ends(2)
        train(cell, 1)
        return Ends(0)

    monkeypatch.setattr(slurm_job, "start", start)
    monkeypatch.setattr(slurm_job.time, "sleep", waits.append)
    Job(cell)()
    assert cell.finished and len(waits) == 2


def programs(folder: Path, **scripts: str) -> str:
    """A PATH with these programs in addition to the usual ones."""
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_the_job_asks_for_the_resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f'cp "$1" {tmp_path}/script; echo Submitted batch job 12'
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", sbatch=script, squeue='printf "12 flcog-a b\\n13 x\\n"', srun=":"))
    cell = table(tmp_path)[0]
    assert Queue("fast", "1-00:00:00", 2).submit(cell) == "12"
    text = (tmp_path / "script").read_text()
    for option in ("partition=fast", "time=1-00:00:00", "gpus-per-node=2", f"job-name={name_of(cell)}", "requeue"):
        assert f"#SBATCH --{option}\n" in text
    assert f"{sys.executable} -P -u -m submitit" in text
    assert Queue().submit(cell) == "12"
    assert not any(word in (tmp_path / "script").read_text() for word in ("--time", "--partition", "--gpus"))
    assert Queue().jobs() == {"flcog-a b": "12", "x": "13"}


def test_an_sbatch_that_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    refuses = "echo 'sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed' >&2; exit 1"
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", sbatch=refuses, squeue=":", srun=":"))
    (tmp_path / "table.yaml").write_text("{rows: {A: , B: }}")
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "table.yaml"), "--out", str(tmp_path / "out"), "--launcher", "slurm"])
    (line,) = capfd.readouterr().err.splitlines()
    reason = "invalid partition specified: x; Batch job submission failed"
    assert line.startswith(f"flcog: error: sbatch refuses the job of A · seed 0: {reason}. Submitted jobs continue")


@pytest.mark.parametrize(
    "words", ["Unable to contact slurm controller (connect failure)", "Socket timed out on send/recv operation"]
)
def test_a_controller_that_restarts_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    fails = f"echo 'error: {words}' >&2; exit 1"
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", sbatch=fails, squeue=fails, srun=":"))
    assert Queue().submit(table(tmp_path)[0]) is None and Queue().jobs() is None


@pytest.mark.parametrize(
    ("scripts", "options", "message"),
    [
        ({}, ["--launcher", "slurm"], "--launcher slurm found no program sbatch on PATH: give the command on a login node"),
        (
            {"sbatch": ":", "squeue": "echo squeue: error: no controller >&2; exit 1", "srun": ":"},
            ["--launcher", "slurm"],
            "--launcher slurm cannot read the queue: no controller; check that slurmctld is running",
        ),
        ({}, ["--partition", "x"], "--partition is for jobs of a cluster: add --launcher slurm, or leave --partition out"),
        ({}, ["--gpus", "2"], "--gpus is for jobs of a cluster"),
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
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", **scripts).partition(":")[0])
    (tmp_path / "table.yaml").write_text("{rows: {A: , B: }}")
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "table.yaml"), "--out", str(tmp_path / "out"), *options])
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"flcog: error: {message}") and not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--dry-run", "--show"])
def test_a_machine_without_slurm_can_look_at_a_table(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path / "bin").partition(":")[0])
    (tmp_path / "table.yaml").write_text("{configs: [quickstart], seeds: [0], rows: {A: }}")
    main(["compare", str(tmp_path / "table.yaml"), "--out", str(tmp_path / "out"), "--launcher", "slurm", option])
    assert not capfd.readouterr().err


def test_without_submitit_one_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    (tmp_path / "table.yaml").write_text("{rows: {A: , B: }}")
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "table.yaml"), "--out", str(tmp_path / "out"), "--launcher", "slurm"])
    (line,) = capfd.readouterr().err.splitlines()
    assert line == "flcog: error: --launcher slurm needs submitit, which is not installed: pip install 'flcog[slurm]'"


def test_a_name_belongs_to_one_folder(tmp_path: Path) -> None:
    first, second = table(tmp_path)
    again, other = table(tmp_path)[0], table(tmp_path / "other")[0]
    assert (
        name_of(first) == name_of(again)
        and len({name_of(cell) for cell in (first, second, other)}) == 3
        and name_of(first).startswith("flcog-A-seed0-")
    )
