"""When a run stops early, and that a resumed run continues to count."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import TinyData, classifier, fit
from run.killed_runs import killed

from flcog.callbacks import EarlyStopping
from flcog.core.processes import Processes
from flcog.method import Callback
from flcog.run import checkpoint

STANDSTILL = partial(torch.optim.SGD, lr=0.0)
"""An optimiser with learning rate 0, so that no metric ever changes."""


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


@pytest.mark.slow
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
    assert stopped_in(stopping_threshold=enough) == 1 + next(n for n, loss in enumerate(losses) if loss <= enough) > 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_early_stopping_ends_a_run_whose_metric_is_not_finite(value: float, capsys: pytest.CaptureFixture[str]) -> None:
    stopping = EarlyStopping("test_loss", patience=2)
    run: Any = SimpleNamespace(processes=Processes(), round=0, settings=SimpleNamespace(eval_every=1), should_stop=False)
    stopping.on_fit_start(run)
    for round, found in enumerate([1.0, value], 1):
        stopping.on_evaluation_end(run, round, {"test/loss": found})
        assert run.should_stop is (round == 2)
    assert f"test/loss is {value}" in capsys.readouterr().out


def test_early_stopping_goes_on_counting_after_a_resume_and_stays_stopped(tmp_path: Path) -> None:
    options: dict[str, Any] = {"module": classifier(STANDSTILL), "rounds": 20, "eval_every": 1}
    both = [EarlyStopping("test_loss", patience=4), EarlyStopping("test/accuracy", patience=9)]
    run = killed(tmp_path, *both, at=4, **options)

    def resumed(*patience: int) -> int:
        observers = [EarlyStopping(name, patience=n) for name, n in zip(("test_loss", "test/accuracy"), patience, strict=True)]
        return fit(tmp_path, *observers, ckpt_path=str(run), **options).round

    assert resumed(4, 9) == 5
    assert resumed(4, 9) == 5
    assert resumed(8, 6) == 7  # each observer has its own counter, and the second one was at 4 of 6
    assert resumed(8, 9) == 9


def test_a_second_fit_starts_counting_anew(tmp_path: Path) -> None:
    trainer = fit(tmp_path, EarlyStopping(patience=2), module=classifier(STANDSTILL), rounds=9, eval_every=1)
    trainer.fit(classifier(STANDSTILL), TinyData())
    assert trainer.run.round == 3
