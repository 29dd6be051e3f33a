"""Observers: what they decide, what they print, and that a resumed run goes on as if it had never stopped."""

import dataclasses
import io
import re
import shlex
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from harness import TinyData, assert_close, classifier, fit, without_times
from rich.console import Console

import flcog
from flcog.callbacks import SCAFFOLD, EarlyStopping, FedAvgM, FedProx, RoundsToTarget
from flcog.core.ledger import human
from flcog.core.monitor import Monitor, lower_is_better, main_metric
from flcog.core.processes import Processes
from flcog.core.text import clock, seconds
from flcog.data import Splits
from flcog.evaluation import spread
from flcog.hooks import Callback, Cohort, Messages, Method, Params, Slot
from flcog.models import MLP
from flcog.run import checkpoint
from flcog.run.description import describe_method as describe
from flcog.run.observers.checkpoint import Checkpoint
from flcog.run.observers.defaults import default_observers
from flcog.run.observers.progress import ProgressBar
from flcog.run.observers.progress_displays import REFRESHES_PER_SECOND
from flcog.run.observers.summary import Summary

STANDSTILL = partial(torch.optim.SGD, lr=0.0)
"""An optimiser under which no metric ever changes."""


class Stop(Callback):
    """Kills the run in the middle of a round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_round_start(self, run: Any, round: int, cohort: list[int]) -> None:
        if round == self.round:
            raise KeyboardInterrupt


def killed(root: Path, *callbacks: Callback, at: int, **options: Any) -> Path:
    """A run killed in round ``at``; returns its directory."""
    with pytest.raises(KeyboardInterrupt):
        fit(root, *callbacks, Stop(at), **options)
    return max(root.iterdir())


class WithValidation(TinyData):
    """The test set's first ten samples are the validation set."""

    def load(self) -> Splits:
        splits = super().load()
        assert splits.test is not None
        rows = torch.arange(len(splits.test))
        held = [type(splits.test)(splits.test.gather(part), splits.test.targets[part]) for part in (rows[:10], rows[10:])]
        return Splits(splits.train, test=held[1], val=held[0])


# What is monitored ----------------------------------------------------------------------------------------------------------------


def test_the_main_metric_is_the_tasks_own_and_models_are_chosen_on_the_validation_set() -> None:
    assert main_metric({"train/loss": 1, "test/loss": 1, "test/accuracy": 0.5}) == "test/accuracy"
    assert main_metric({"test/loss": 1, "test/C-P": 0.1, "test/macro-AP": 0.5}) == "test/macro-AP"
    assert main_metric({"test/loss": 1, "test/mae": 1, "test/mse": 1}) == "test/mse"
    assert main_metric({"test/loss": 1}) == "test/loss"
    assert main_metric({"train/loss": 1}) is None
    both = {"val/accuracy": 0.1, "test/accuracy": 0.2}
    assert main_metric(both) == "test/accuracy"
    assert main_metric(both, selecting=True) == "val/accuracy"


@pytest.mark.parametrize(
    ("targets", "module", "metric", "better"),
    [
        ("classification", flcog.Classifier, "test/accuracy", max),
        ("multilabel", flcog.MultiLabelClassifier, "test/macro-AP", max),
        ("regression", flcog.Regressor, "test/mse", min),
    ],
)
def test_the_best_checkpoint_is_the_best_rounds_model(
    tmp_path: Path, targets: Any, module: Any, metric: str, better: Any
) -> None:
    rate = 0.03 if targets == "regression" else 0.7
    client = module(MLP(6, (8,), 1 if targets == "regression" else 3), optimizer=partial(torch.optim.SGD, lr=rate))
    data = TinyData(targets=targets)
    trainer = fit(tmp_path, module=client, data=data, eval_every=1, rounds=6)
    values = [row[metric] for row in trainer.history]
    assert len(set(values)) > 1 and trainer.run_dir is not None
    best = trainer.run_dir / "checkpoints/best.ckpt"
    assert checkpoint.read(best)["round"] == 1 + values.index(better(values))
    assert trainer.test(client, data, str(best))[metric] == better(values)


@pytest.mark.parametrize(
    ("name", "lower"),
    [
        ("test/mse", True),
        ("train/loss", True),
        ("test/client_mae_worst_decile", True),
        ("test/accuracy", False),
        ("test/class_accuracy_tail", False),
        ("test/class_accuracy_std", True),
        ("test/client_accuracy_std", True),
        ("test/client_accuracy_variance", True),
        ("test/client_accuracy_jain", False),
        ("test/client_mae_jain", False),
    ],
)
def test_which_way_is_up(name: str, lower: bool) -> None:
    assert lower_is_better(name) == lower
    assert Monitor(name, None).gain(name, 1.0, over=2.0) == (1 if lower else -1)


def test_an_explicit_metric_decides_and_so_does_an_explicit_mode(tmp_path: Path) -> None:
    def best_round(**options: Any) -> tuple[int, list[dict[str, float]]]:
        trainer = fit(tmp_path, Checkpoint(**options), module=classifier(partial(torch.optim.SGD, lr=0.02)), eval_every=1)
        assert trainer.run_dir is not None
        return checkpoint.read(trainer.run_dir / "checkpoints/best.ckpt")["round"], trainer.history

    lowest, history = best_round(monitor="test/loss")
    losses = [row["test/loss"] for row in history]
    assert lowest == 1 + losses.index(min(losses)) > 1
    assert best_round(monitor="test/loss", mode="max")[0] == 1 + losses.index(max(losses)) == 1


def test_a_metric_that_is_not_measured_is_refused_at_the_first_evaluation(tmp_path: Path) -> None:
    for observer in (Checkpoint("test/acuracy"), EarlyStopping("test/acuracy"), RoundsToTarget(0.5, "test/acuracy")):
        with pytest.raises(ValueError, match=r"test/acuracy.*did you mean 'test/accuracy'\?.*test/loss"):
            fit(tmp_path, observer, eval_every=2)
        assert len((max(tmp_path.iterdir()) / "metrics.csv").read_text().splitlines()) == 2  # the header and round 1
    with pytest.raises(ValueError, match="mode must be max or min; got 'largest'"):
        Checkpoint(mode="largest")  # type: ignore[arg-type]


def test_observers_of_evaluations_refuse_a_run_without_any(tmp_path: Path) -> None:
    for observer in (EarlyStopping(), RoundsToTarget(0.5)):
        with pytest.raises(ValueError, match="eval_every=0 makes none"):
            fit(tmp_path, observer, eval_every=0)


# Checkpoints ----------------------------------------------------------------------------------------------------------------------


def test_last_is_written_every_n_rounds_and_at_the_end(tmp_path: Path) -> None:
    run = killed(tmp_path / "killed", Checkpoint(every_n_rounds=2), at=4, rounds=5)
    assert checkpoint.read(run / "checkpoints/last.ckpt")["round"] == 2
    for every in (0, 2):
        trainer = fit(tmp_path / str(every), Checkpoint(every_n_rounds=every), rounds=3)
        assert trainer.run_dir is not None
        assert checkpoint.read(trainer.run_dir / "checkpoints/last.ckpt")["round"] == 3


def test_a_run_goes_on_from_a_kept_checkpoint_again_and_again(tmp_path: Path) -> None:
    """Clients' states lie in files that checkpoints share; those of a kept one survive every later round."""
    keep = partial(Checkpoint, every_n_rounds=3, keep_every_n_rounds=2)
    whole = fit(tmp_path / "whole", SCAFFOLD(), keep(), rounds=6)
    assert whole.run_dir is not None
    folder = whole.run_dir / "checkpoints"
    assert sorted(path.name for path in folder.glob("round-*")) == [f"round-{n:06d}.ckpt" for n in (2, 4, 6)]
    for start in (2, 4, 2):
        again = fit(tmp_path / "whole", SCAFFOLD(), keep(), rounds=6, ckpt_path=str(folder / f"round-{start:06d}.ckpt"))
        assert_close(again.params, whole.params, rtol=0)
        assert without_times(again.history) == without_times(whole.history)
    referred = {name for path in folder.glob("*.ckpt") for name in checkpoint.read(path).get("clients", {}).values()}
    assert {path.name for path in (folder / "clients").iterdir()} == referred


def test_a_checkpoint_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    class Obstacle(Callback):
        def on_fit_start(self, run: Any) -> None:
            (run.directory / "checkpoints").write_text("in the way")

    with pytest.raises(
        ValueError, match=r"cannot write .*last\.ckpt: .*; free space or choose another trainer\.default_root_dir"
    ):
        fit(tmp_path, Obstacle())


def test_a_killed_run_says_how_to_go_on_once_it_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path / "early", at=1)
    assert "go on" not in capsys.readouterr().out
    run = killed(tmp_path / "late", at=3)
    printed = capsys.readouterr().out
    assert "The run can go on after round 2:" in printed
    command = f"trainer.fit(model, datamodule, ckpt_path={str(run)!r})"
    assert command in printed
    trainer = fit(tmp_path / "other")
    capsys.readouterr()
    eval(command, {"trainer": trainer, "model": classifier(), "datamodule": TinyData()})
    assert trainer.run_dir == run and trainer.run.round == 3
    with pytest.raises(ValueError, match="no checkpoint at"):
        trainer.fit(classifier(), TinyData(), str(tmp_path / "nowhere"))
    assert "go on" not in capsys.readouterr().out.split("Test its")[-1]


# Early stopping -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("eval_every", "last"), [(1, 3), (2, 6)])
def test_early_stopping_counts_evaluations_without_improvement(
    tmp_path: Path, eval_every: int, last: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stopping = EarlyStopping(patience=2)
    trainer = fit(tmp_path, stopping, module=classifier(STANDSTILL), rounds=20, eval_every=eval_every)
    assert trainer.run.round == last == len(trainer.history)
    accuracy = trainer.history[-1]["test/accuracy"]
    assert (
        f"ends the run after round {last}: test/accuracy has not improved on {accuracy:.4g} of round" in capsys.readouterr().out
    )
    assert trainer.run_dir is not None and checkpoint.read(trainer.run_dir / "checkpoints/last.ckpt")["round"] == last


def test_early_stopping_asks_for_more_than_min_delta_and_stops_at_a_threshold(tmp_path: Path) -> None:
    def run(*callbacks: Callback) -> list[float]:
        trainer = fit(tmp_path, *callbacks, module=classifier(partial(torch.optim.SGD, lr=0.3)), eval_every=1, rounds=12)
        return [row["test/loss"] for row in trainer.history]

    def stopped_in(**options: Any) -> int:
        return len(run(EarlyStopping("test/loss", **options)))

    losses = run()

    def first_without_gain(better: Any, patience: int) -> int:
        seen = [losses[: n + 1] for n in range(len(losses))]
        return next(len(s) for s in seen if len(s) - 1 - s.index(better(s)) == patience)

    falling, growing = first_without_gain(min, 2), first_without_gain(max, 2)
    assert 3 < falling < 12 and falling != growing
    assert stopped_in(patience=2) == falling
    assert stopped_in(patience=2, mode="max") == growing
    assert stopped_in(patience=2, min_delta=10.0) == 3
    enough = sorted(losses)[4]
    assert stopped_in(threshold=enough) == 1 + next(n for n, loss in enumerate(losses) if loss <= enough) > 1


def test_early_stopping_takes_nan_for_no_improvement() -> None:
    stopping = EarlyStopping("test/loss", patience=2)
    run: Any = SimpleNamespace(processes=Processes(rank=1), round=0, settings=SimpleNamespace(eval_every=1), should_stop=False)
    stopping.on_fit_start(run)
    for round, (value, stops) in enumerate([(float("nan"), False), (1.0, False), (float("nan"), False), (float("nan"), True)], 1):
        stopping.on_evaluation_end(run, round, {"test/loss": value})
        assert run.should_stop is stops


def test_early_stopping_goes_on_counting_after_a_resume_and_stays_stopped(tmp_path: Path) -> None:
    options: dict[str, Any] = {"module": classifier(STANDSTILL), "rounds": 20, "eval_every": 1}
    both = [EarlyStopping("test/loss", patience=4), EarlyStopping("test/accuracy", patience=9)]
    run = killed(tmp_path, *both, at=4, **options)

    def resumed(*patience: int) -> int:
        observers = [EarlyStopping(name, patience=n) for name, n in zip(("test/loss", "test/accuracy"), patience, strict=True)]
        return fit(tmp_path, *observers, ckpt_path=str(run), **options).round

    assert resumed(4, 9) == 5
    assert resumed(4, 9) == 5
    assert resumed(8, 6) == 7  # each has its own counter: the second's was at 4 of 6
    assert resumed(8, 9) == 9


def test_a_second_fit_starts_counting_anew(tmp_path: Path) -> None:
    trainer = fit(tmp_path, EarlyStopping(patience=2), module=classifier(STANDSTILL), rounds=9, eval_every=1)
    trainer.fit(classifier(STANDSTILL), TinyData())
    assert trainer.run.round == 3


def test_bad_arguments_are_refused() -> None:
    for options, message in (
        ({"patience": 0}, "patience must be at least 1"),
        ({"min_delta": -1}, "min_delta must be at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            EarlyStopping(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every_n_rounds must be at least 0; got -1"):
        Checkpoint(every_n_rounds=-1)
    with pytest.raises(ValueError, match="num_lines must be at least 1"):
        ProgressBar(num_lines=0)
    with pytest.raises(ValueError, match="Checkpoint is listed 2 times"):
        default_observers([Checkpoint(), Checkpoint()])


# Rounds to a target ---------------------------------------------------------------------------------------------------------------


def test_rounds_and_bytes_to_a_target_are_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = fit(tmp_path / "plain", eval_every=1, rounds=6)
    losses, accuracies = ([row[f"test/{name}"] for row in plain.history] for name in ("loss", "accuracy"))
    targets = [RoundsToTarget(losses[3], "test/loss"), RoundsToTarget(max(accuracies)), RoundsToTarget(2.0)]
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
    assert not any(name.startswith("to_accuracy_2/") for row in trainer.history for name in row)
    assert "the main metric did not reach 2 in 6 rounds" in printed


def test_a_target_reached_before_a_resume_is_not_reached_again(tmp_path: Path) -> None:
    run = killed(tmp_path, RoundsToTarget(0.0), at=3, eval_every=1)
    trainer = fit(tmp_path, RoundsToTarget(0.0), eval_every=1, ckpt_path=str(run))
    assert [row.get("to_accuracy_0/rounds") for row in trainer.history] == [1, None, None]


# Progress -------------------------------------------------------------------------------------------------------------------------


def progress_lines(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if re.match(r"round +\d+/", line)]


def test_without_a_terminal_progress_is_a_few_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = fit(tmp_path, rounds=50, local_steps=1, clients_per_round=1, eval_every=1)
    lines = progress_lines(capsys.readouterr().out)
    assert 15 <= len(lines) <= 22
    assert lines[0].startswith("round  1/50  ") and lines[-1].startswith("round 50/50  ")
    row = trainer.history[-1]
    scores = f"  test accuracy {row['test/accuracy']:.4f}, loss {row['test/loss']:.4f}  train loss {row['train/loss']:.4f}  "
    assert scores in lines[-1]
    assert lines[-1].endswith("/round  0:00 left")
    assert not progress_lines_of_a_run_with(tmp_path, capsys, ProgressBar(enabled=False))


def progress_lines_of_a_run_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bar: ProgressBar, **options: Any
) -> list[str]:
    fit(tmp_path, bar, **options)
    return progress_lines(capsys.readouterr().out)


def test_progress_goes_on_where_a_resumed_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = killed(tmp_path, at=3, rounds=4)
    capsys.readouterr()
    lines = progress_lines_of_a_run_with(tmp_path, capsys, ProgressBar(), rounds=4, ckpt_path=str(run))
    assert [line.split("  ")[0] for line in lines] == ["round 3/4", "round 4/4"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 80 columns is sent by the progress bar."""
    screen = io.StringIO()
    console = partial(Console, file=screen, force_terminal=True, force_interactive=True, width=80, color_system=None)
    monkeypatch.setattr("flcog.run.observers.progress_displays.Console", console)
    return screen


def test_on_a_terminal_progress_is_one_live_line(
    tmp_path: Path, terminal: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.perf_counter()
    trainer = fit(tmp_path, rounds=100, local_steps=1, clients_per_round=1, eval_every=1)
    took = time.perf_counter() - began
    drawn = re.findall(r"round \d+/100 [^\r\n]*? left", terminal.getvalue())
    row = trainer.history[-1]
    scores = (
        f"test accuracy {row['test/accuracy']:.4f}, loss {row['test/loss']:.4f}  train loss {row['train/loss']:.4f}  0:00 left"
    )
    assert drawn[-1].startswith("round 100/100 ") and drawn[-1].endswith(scores)
    assert max(map(len, drawn)) <= 80
    assert len(drawn) <= took * REFRESHES_PER_SECOND + 3, "the line is drawn by the clock, not by the round"
    assert terminal.getvalue().endswith("\x1b[?25h"), "the cursor is shown again"
    assert not progress_lines(capsys.readouterr().out)


def test_the_terminal_is_put_right_when_a_run_dies(tmp_path: Path, terminal: io.StringIO) -> None:
    killed(tmp_path, at=3)
    assert terminal.getvalue().endswith("\x1b[?25h") and "round 2/3" in terminal.getvalue()


def test_progress_costs_far_less_than_a_short_round(terminal: io.StringIO) -> None:
    trainer: Any = SimpleNamespace(processes=Processes(), settings=SimpleNamespace(rounds=2000), round=0, should_stop=False)
    bar = ProgressBar()
    bar.on_fit_start(trainer)
    began = time.process_time()
    for round in range(1, 2001):
        bar.on_round_start(trainer, round, [])
        bar.on_evaluation_end(trainer, round, {"test/accuracy": 0.5})
        bar.on_round_end(trainer, round, {"train/loss": 0.5})
    bar.on_fit_end(trainer)
    assert (time.process_time() - began) / 2000 < 1e-3


def test_times_are_written_for_people() -> None:
    assert [seconds(value) for value in (0.0042, 0.0213, 0.213, 12.34, 123.4)] == ["4.2 ms", "21 ms", "0.21 s", "12.3 s", "123 s"]
    assert [clock(value) for value in (8, 75, 3675, 100_000)] == ["0:08", "1:15", "1:01:15", "1 d 3:46:40"]


# Summary --------------------------------------------------------------------------------------------------------------------------


def summary_of(printed: str) -> dict[str, str]:
    """The topics of a printed summary, with their texts unwrapped."""
    topics: dict[str, str] = {}
    topic = ""
    for line in printed.splitlines():
        if match := re.match(r"  (\S.*?)(?:  +(.*))?$", line):
            topic = match[1]
            topics[topic] = match[2] or ""
        elif line.startswith("    ") and topic:
            topics[topic] += " " + line.strip()
    return topics


def test_the_summary_says_what_the_run_is_and_what_came_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = fit(tmp_path, SCAFFOLD(), FedProx(mu=0.25, start_round=1), eval_every=1, rounds=6)
    printed = capsys.readouterr().out
    before, after = printed.split("round 1/6", 1)
    setting, results = summary_of(before), summary_of(after)
    num_parameters = sum(p.numel() for p in trainer.run.params.values())
    assert setting["task"] == "classification, 3 classes"
    assert setting["model"] == f"MLP, {num_parameters} parameters"
    assert setting["data"] == "TinyData, 80 samples, 30 test samples"
    assert setting["clients"] == f"8 (partition {trainer.run.federation.partition.hash}), 5 a round"
    assert setting["local work"] == "4 local steps, batches of 4"
    assert setting["methods"] == f"{describe(SCAFFOLD())} FedProx(start_round=1, mu=0.25)"
    assert setting["executor"] == "loop"
    assert setting["run"] == results["run"] == str(trainer.run_dir)

    accuracies = [row["test/accuracy"] for row in trainer.history]
    assert results["rounds"] == "6 of 6"
    best = f"best {max(accuracies):.4f} (round {1 + accuracies.index(max(accuracies))})"
    assert results["test/accuracy"] == f"{best}, last {accuracies[-1]:.4f}, mean of last 5 {np.mean(accuracies[-5:]):.4f}"
    up, down = (sum(row[f"comm/{way}_bytes"] for row in trainer.history) for way in ("up", "down"))
    plain = 6 * 5 * 8 * num_parameters  # rounds, clients, bytes of a float64
    assert results["sent"] == f"{human(up)} up ({up / plain:.2f} x FedAvg's), {human(down)} down ({down / plain:.2f} x FedAvg's)"
    assert 1.9 < up / plain < 2.1
    assert re.fullmatch(r".* m?s a round \(median\), 0:\d\d in all with evaluation", results["took"])
    assert (
        max(len(line) for line in printed.splitlines() if not line.startswith("  trainer.") and str(tmp_path) not in line) <= 80
    )


def test_the_summary_is_silent_about_what_does_not_apply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path, rounds=2, local_epochs=1.0)
    printed = capsys.readouterr().out
    assert "none: plain FedAvg" in printed and "1 local epoch, batches of 4" in printed
    assert "FedAvg's" not in printed and "accuracy" not in printed and "Go on" not in printed
    fit(tmp_path, Summary(enabled=False), ProgressBar(enabled=False))
    assert capsys.readouterr().out == ""


def test_a_validation_set_chooses_the_round_whose_test_score_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = fit(tmp_path, data=WithValidation(), module=classifier(partial(torch.optim.SGD, lr=0.7)), eval_every=1, rounds=6)
    chosen = max(trainer.history, key=lambda row: row["val/accuracy"])
    assert f"{chosen['test/accuracy']:.4f} where val/accuracy was best (round {chosen['round']})" in capsys.readouterr().out
    assert trainer.run_dir is not None
    assert checkpoint.read(trainer.run_dir / "checkpoints/best.ckpt")["round"] == chosen["round"]


def test_only_the_first_process_prints(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trainer: Any = fit(tmp_path, rounds=1, eval_every=1)
    observers = [ProgressBar(), RoundsToTarget(0.0), EarlyStopping(threshold=0.0), Checkpoint(), Summary()]
    metrics = dict(trainer.history[0])
    for is_first in (True, False):
        run = trainer.run
        settings = dataclasses.replace(run.settings, rounds=2)
        run.engine = dataclasses.replace(run.engine, settings=settings, processes=Processes(rank=int(not is_first)))
        run.server.round = 0
        stand_in: Any = run
        capsys.readouterr()
        for observer in observers:
            observer.on_fit_start(stand_in)
            observer.on_round_start(stand_in, 1, [0])
            observer.on_evaluation_end(stand_in, 1, metrics)
            observer.on_round_end(stand_in, 1, metrics)
            observer.on_fit_end(stand_in)
            observer.on_exception(stand_in, KeyboardInterrupt())
        printed = capsys.readouterr().out
        for word in ("parameters", "round 1/2", "reached 0", "ends the run", "go on", "median") if is_first else ():
            assert word in printed
    assert printed == ""


CONFIG = """
trainer: {{rounds: 3, local_steps: 1, clients_per_round: 2, logger: false, default_root_dir: {root}, accelerator: cpu}}
model:
  class_path: flcog.Classifier
  init_args:
    model: {{class_path: flcog.models.MLP, init_args: {{in_features: 64, hidden: [8], num_outputs: 10}}}}
data: {{class_path: flcog.datamodules.Digits, init_args: {{image_size: 8}}}}
"""

STOPPING = """
trainer:
  callbacks+: [{class_path: flcog.callbacks.EarlyStopping, init_args: {threshold: 0.0}}]
"""


@pytest.mark.usefixtures("command_line")
def test_the_commands_that_a_run_suggests_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flcog.commands.cli import main

    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    (tmp_path / "config.yaml").write_text(CONFIG.format(root=tmp_path / "runs"))
    (tmp_path / "stopping.yaml").write_text(STOPPING)
    monkeypatch.chdir(tmp_path)
    main(["fit", "-c", "config.yaml", "-c", "stopping.yaml"])
    printed = capsys.readouterr().out
    commands = dict(re.findall(r"^(.*):\n  (flcog .*)$", printed, re.MULTILINE))
    assert commands.keys() == {"Test its best model", "Go on with it"}
    (value,) = re.findall(r"best (0\.\d{4}) \(round 1\)", printed)
    main(shlex.split(commands["Test its best model"])[1:])
    assert f"{float(value):.3g}" in capsys.readouterr().out
    main([*shlex.split(commands["Go on with it"])[1:], "--trainer.callbacks", "null"])
    assert "3 of 3" in capsys.readouterr().out
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    main(["fit", "-c", "config.yaml", "--trainer.rounds", "1"])
    assert "\n  uv run flcog test " in capsys.readouterr().out


# Figures --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lower_is_better", [False, True])
def test_the_spread_over_clients_is_numpys(lower_is_better: bool) -> None:
    scores = np.random.default_rng(0).random(37)
    with_gaps = torch.from_numpy(np.insert(scores, [3, 9], np.nan))
    worst = np.sort(scores)[::-1][:3] if lower_is_better else np.sort(scores)[:3]
    expected = {"mean": scores.mean(), "std": scores.std(), "worst_decile": worst.mean()}
    expected |= {f"q{q}": np.percentile(scores, q) for q in (10, 50, 90)}
    figures = spread(with_gaps, "test/client_accuracy", lower_is_better)
    assert figures == pytest.approx({f"test/client_accuracy_{name}": value for name, value in expected.items()}, rel=1e-12)
    assert spread(torch.full((3,), torch.nan), "x", lower_is_better) == {}


def test_clients_scores_are_those_of_their_own_parts(tmp_path: Path) -> None:
    trainer = fit(tmp_path, data=TinyData(client_test=0.4), eval_every=1, rounds=1)
    federation, parts = trainer.run.federation, trainer.run.federation.client_test
    assert parts is not None
    scores = []
    for k in range(parts.num_clients):
        inputs, targets = federation.load(federation.train, torch.from_numpy(parts.client(k)), torch.device("cpu"))
        outputs = torch.func.functional_call(trainer.run.model.eval_module, trainer.run.params, (inputs.double(),))
        scores.append(float((outputs.argmax(1) == targets).double().mean()))
    assert len(set(scores)) > 2
    assert trainer.history[0]["test/client_accuracy_mean"] == pytest.approx(np.mean(scores))
    assert trainer.history[0]["test/client_accuracy_q10"] == pytest.approx(np.percentile(scores, 10))


SEEN: list[dict[int, torch.Tensor]] = []
WEIGHTS: list[dict[int, float]] = []


class Spy(Method):
    """Writes down what each client sent."""

    individual_uploads = True

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        SEEN.append({one.client: torch.cat([v.flatten() for v in one.delta.values()]) for one in messages.individual})
        WEIGHTS.append({one.client: one.weight for one in messages.individual})
        return delta, server


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_drift_is_the_mean_norm_and_the_mean_cosine_to_the_mean(tmp_path: Path, executor: str) -> None:
    SEEN.clear()
    WEIGHTS.clear()
    trainer = fit(tmp_path, FedAvgM(beta=0.5), Spy(), executor=executor, eval_every=1)
    assert len(SEEN) == 3
    for row, deltas, weights in zip(trainer.history, SEEN, WEIGHTS, strict=True):
        mean = sum(weights[k] * deltas[k] for k in deltas)
        norms = [float(delta.norm()) for delta in deltas.values()]
        cosines = [float(torch.nn.functional.cosine_similarity(delta, mean, dim=0)) for delta in deltas.values()]
        assert row["clients/participating"] == len(deltas) == 5
        assert row["drift/norm"] == pytest.approx(np.mean(norms), rel=1e-9)
        assert row["drift/cosine"] == pytest.approx(np.mean(cosines), rel=1e-9)
        assert 0 < row["drift/cosine"] < 1
