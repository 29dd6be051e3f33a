"""A signal ends a run between two rounds; the run is saved, and resumes bit for bit."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import RecordingTrainer, TinyData, classifier, make_trainer, without_times
from two_processes import rounds_done, started, wait_for

import flcog
from flcog.callbacks import SCAFFOLD, Checkpoint, FedAvgM, FedDisco
from flcog.core import signals
from flcog.method import Context, Gradient, Params
from flcog.run import checkpoint

ROUNDS = 5


class SendsItself(flcog.Callback):
    """Sends signals to its own process at the start or at the end of a round."""

    def __init__(self, *numbers: int, at: int = 3, hook: str = "on_round_start") -> None:
        self.numbers, self.at, self.hook = numbers, at, hook

    def _send(self, hook: str, round: int) -> None:
        if (hook, round) == (self.hook, self.at):
            for number in self.numbers:
                os.kill(os.getpid(), number)

    def on_round_start(self, run: flcog.Run, round: int, cohort: Sequence[int]) -> None:
        self._send("on_round_start", round)

    def on_round_end(self, run: flcog.Run, round: int, metrics: dict[str, float]) -> None:
        self._send("on_round_end", round)


steps_until_signal = 0


@dataclass(frozen=True)
class SendsInTraining(flcog.Method):
    """Sends SIGTERM in the middle of a client's local steps, after some clients of the round have ended theirs."""

    def correct_gradient(self, gradient: Gradient, params: Params, ctx: Context) -> Gradient:
        global steps_until_signal
        steps_until_signal -= 1
        if steps_until_signal == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return gradient


def trainer_for(root: Path, *observers: Any, every: int = 10) -> RecordingTrainer:
    """A run with every kind of state: of the clients, of the server, and first-contact messages."""
    methods = [SCAFFOLD(), FedAvgM(), FedDisco(), SendsInTraining()]
    return make_trainer(root, *methods, Checkpoint(every_n_rounds=every), *observers, rounds=ROUNDS, eval_every=2)


def go(trainer: RecordingTrainer, ckpt_path: str | None = None) -> RecordingTrainer:
    trainer.fit(classifier(), TinyData(), ckpt_path)
    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RecordingTrainer:
    return go(trainer_for(tmp_path_factory.mktemp("whole")))


def saved_round(root: Path) -> int:
    (path,) = root.glob("*/checkpoints/last.ckpt")
    return checkpoint.read(path)["round"]


def assert_goes_on(root: Path, whole: RecordingTrainer) -> None:
    resumed = go(trainer_for(root), "last")
    assert without_times(resumed.history) == without_times(whole.history)
    assert all(torch.equal(whole.params[name], resumed.params[name]) for name in whole.params)


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT"])
@pytest.mark.parametrize("hook", ["on_round_start", "on_round_end"])
def test_a_signal_lets_the_round_be_finished_and_saves_it(
    name: str, hook: str, tmp_path: Path, whole: RecordingTrainer, capfd: pytest.CaptureFixture[str]
) -> None:
    number = getattr(signal, name)
    before = [signal.getsignal(each) for each in signals.available()]
    with pytest.raises(KeyboardInterrupt if name == "SIGINT" else SystemExit) as stop:
        go(trainer_for(tmp_path, SendsItself(number, hook=hook), every=0))
    assert name == "SIGINT" or stop.value.code == 75
    assert [signal.getsignal(each) for each in signals.available()] == before
    output = capfd.readouterr()
    assert f"flcog: {signals.name(number)}: the round in hand is finished, then the run is saved" in output.err
    assert "The run can go on after round 3:" in output.out
    assert saved_round(tmp_path) == 3
    assert_goes_on(tmp_path, whole)


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)])
def test_sigterm_and_a_second_interrupt_end_the_run_at_once(
    numbers: tuple[int, ...], tmp_path: Path, whole: RecordingTrainer, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, KeyboardInterrupt)) as stop:
        go(trainer_for(tmp_path, SendsItself(*numbers), every=1))
    assert not isinstance(stop.value, signals.RunStopped | signals.RunInterrupted)
    assert "The run can go on after round 2:" in capfd.readouterr().out and saved_round(tmp_path) == 2
    assert_goes_on(tmp_path, whole)


@pytest.mark.parametrize("step", [1, 2 * 5 * 4 + 10])
def test_a_round_that_ends_in_its_middle_leaves_no_trace_in_the_checkpoint(
    step: int, tmp_path: Path, whole: RecordingTrainer
) -> None:
    """A round has five clients, which take four steps each."""
    global steps_until_signal
    steps_until_signal = step
    with pytest.raises(SystemExit) as stop:
        go(trainer_for(tmp_path, every=1))
    assert stop.value.code == 75
    if step > 20:
        assert saved_round(tmp_path) == 2
        assert_goes_on(tmp_path, whole)
    else:
        assert not list(tmp_path.glob("*/checkpoints/*"))


def test_after_the_last_round_there_is_nothing_to_stop(tmp_path: Path, whole: RecordingTrainer) -> None:
    trainer = go(trainer_for(tmp_path, SendsItself(signal.SIGUSR1, at=ROUNDS)))
    assert without_times(trainer.history) == without_times(whole.history)


def test_before_the_first_round_every_signal_ends_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Data(TinyData):
        def prepare_data(self) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.raises(SystemExit) as stop:
        trainer_for(tmp_path).fit(classifier(), Data())
    assert stop.value.code == 75
    assert "stopped by SIGUSR1" in capfd.readouterr().err


def test_others_handlers_stay(tmp_path: Path, whole: RecordingTrainer) -> None:
    """``nohup`` ignores SIGHUP; a scheduler's library may answer SIGUSR1 itself; and only the main thread can have handlers."""
    heard: list[int] = []
    before = [signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))]
    try:
        trainer = go(trainer_for(tmp_path / "a", SendsItself(signal.SIGHUP, signal.SIGUSR1)))
    finally:
        for number, handler in zip((signal.SIGHUP, signal.SIGUSR1), before, strict=True):
            signal.signal(number, handler)
    assert heard == [signal.SIGUSR1] and trainer.run.round == ROUNDS
    thread = threading.Thread(target=go, args=(threaded := trainer_for(tmp_path / "b"),))
    thread.start()
    thread.join()
    assert without_times(threaded.history) == without_times(whole.history)


def run_slowly(root: str, devices: int) -> None:
    """Runs in the processes that the test below starts."""

    class Slow(flcog.Callback):
        def on_round_start(self, run: flcog.Run, round: int, cohort: Sequence[int]) -> None:
            file = Path(root) / f"pid{run.processes.rank}"
            if not file.exists():  # written once, as the test may read it at any time
                file.write_text(str(os.getpid()))
            time.sleep(0.2)

    trainer = make_trainer(
        Path(root) / "runs", SCAFFOLD(), Checkpoint(every_n_rounds=0), Slow(), rounds=200, eval_every=1, devices=devices
    )
    trainer.fit(classifier(), TinyData())


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_all_processes_stop_after_the_same_round_whichever_is_told(rank: int, tmp_path: Path) -> None:
    process = started(run_slowly, tmp_path, str(tmp_path), devices=2)
    wait_for(lambda: rounds_done(tmp_path / "runs") >= 3)
    os.kill(int((tmp_path / f"pid{rank}").read_text()), signal.SIGUSR1)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75 and "The run can go on after round" in output
    (table,) = tmp_path.glob("runs/*/metrics.csv")
    assert saved_round(tmp_path / "runs") == len(table.read_text().splitlines()) - 1
