"""``executor: fastest`` times the possible executors and takes the fastest. A resumed run keeps this choice."""

import time
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from harness import TinyData, assert_close, classifier, train

import flcog
from flcog.callbacks import SCAFFOLD
from flcog.client.executor import Assignment, Choice, Result
from flcog.execute import plan, trials
from flcog.execute.batched import Batched
from flcog.execute.sequential import Sequential


def slow_down(patch: pytest.MonkeyPatch, executor: type, seconds: float) -> None:
    run = executor.run

    def slowly(self: Any, assignment: Assignment) -> Generator[Result, None, None]:
        time.sleep(seconds)
        yield from run(self, assignment)

    patch.setattr(executor, "run", slowly)


def fitted(root: Path, rounds: int, **options: Any) -> flcog.FederatedTrainer:
    trainer = flcog.FederatedTrainer(
        rounds=rounds,
        clients_per_round=5,
        local_steps=4,
        executor="fastest",
        callbacks=[SCAFFOLD()],
        logger=False,
        eval_every=0,
        accelerator="cpu",
        default_root_dir=str(root),
    )
    trainer.fit(classifier(), TinyData(), **options)
    return trainer


def chosen(trainer: flcog.FederatedTrainer) -> dict[str, Any]:
    return yaml.safe_load((trainer.run_dir / "run.yaml").read_text())


@pytest.mark.parametrize(("slow", "fast"), [(Batched, "loop"), (Sequential, "vmap")])
@pytest.mark.slow
def test_the_fastest_is_taken_and_kept(
    slow: type, fast: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        slow_down(patch, slow, 0.1)
        whole, half = fitted(tmp_path / "whole", 3), fitted(tmp_path / "half", 1)
    for trainer in (whole, half):
        assert trainer.run.engine.clients.executor.name == chosen(trainer)["executor"] == fast
    told = " ".join(capsys.readouterr().out.split())
    assert "the fastest, timed in round 1, of loop, 1 client at a time" in told
    assert f"executor {fast}, {chosen(half)['clients_at_once']} client" in told and "(time of a client: loop" in told
    with monkeypatch.context() as patch:
        # The faster executor is slower now, but the resumed run keeps it.
        slow_down(patch, Batched if slow is Sequential else Sequential, 0.1)
        resumed = fitted(tmp_path / "half", 3, ckpt_path=str(half.run_dir))
    settings = chosen(resumed)
    assert (settings["executor"], settings["clients_at_once"]) == (fast, chosen(half)["clients_at_once"])
    for name, value in whole.run.params.items():
        assert torch.equal(resumed.run.params[name], value), name


@pytest.mark.slow
def test_a_trial_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = train(SCAFFOLD())
    slow_down(monkeypatch, Batched, 0.1)
    measured = train(SCAFFOLD(), executor="fastest")
    assert measured.executor.name == "loop"
    assert_close(measured.params, loop.params, 0)
    assert measured.rows == loop.rows


def test_what_fails_is_not_taken_and_time_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, assignment: Assignment) -> Any:
        raise torch.OutOfMemoryError("no memory")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(Batched, "run", fails)
        trainer = train(executor="fastest", chunk_size=2, rounds=1)
    assert trainer.executor.name == "loop" and "vmap, 2 clients at a time: fails (no memory)" in trainer.notes[-1]
    monkeypatch.setattr(trials, "BUDGET", 0.0)
    trainer = train(executor="fastest", rounds=1)
    assert trainer.executor.choice == Choice("loop", 1) and "not tried" in trainer.notes[-1]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_what_a_devices_libraries_take_to_load_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, loading libraries on an accelerator would use up the time for trials, and only the loop would be tried."""
    monkeypatch.setattr(trials, "BUDGET", 1.0)
    run, loaded = Sequential.run, list[bool]()

    def loads_first(self: Any, assignment: Assignment) -> Generator[Result, None, None]:
        if not loaded:
            loaded.append(True)
            time.sleep(1.1)
        yield from run(self, assignment)

    monkeypatch.setattr(Sequential, "run", loads_first)
    trainer = train(executor="fastest", rounds=1)
    assert loaded and "not tried" not in trainer.notes[-1] and "vmap, 5 clients at a time: " in trainer.notes[-1]


@pytest.mark.parametrize(("first", "expected"), [(0.1, 0.1 + 0.02 * 9), (0.3, 0.3 * 10)])
def test_long_steps_are_tried_once_beyond_the_first_time(first: float, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a first run of one step, which is not counted, one step is timed, and six steps only if this step is short.

    The time of a client with ten steps is extrapolated. Further steps take less time than the first, which includes fixed costs.
    """
    tried: list[int] = []

    def seconds(executor: Any, assignment: Assignment, clients: int, steps: int) -> float:
        tried.append(steps)
        return 9.0 if len(tried) == 1 else first + 0.02 * (steps - 1)

    monkeypatch.setattr(trials, "_time", seconds)
    assignment: Any = SimpleNamespace(works=[SimpleNamespace(num_steps=10)])
    executor: Any = SimpleNamespace(clients_at_once=1)
    assert trials._seconds_per_client(executor, assignment, is_warm=False) == pytest.approx(expected)
    assert tried == ([1, 1, trials.TRIAL_STEPS] if first < trials.LONG else [1, 1])


def test_an_error_of_the_users_is_the_rounds_own() -> None:
    class Broken(flcog.Classifier):
        def per_example_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            raise KeyError("my own mistake")

    with pytest.raises(KeyError, match="my own mistake") as caught:
        train(module=Broken(flcog.models.MLP(6, (8,), 3)), executor="fastest")
    assert any("in client" in note for note in caught.value.__notes__)


def test_where_there_is_one_executor_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "obstacle_to_threads", lambda job: "none")

    class Own(torch.optim.SGD):
        pass

    trainer = train(module=classifier(lambda params: Own(params, lr=0.1)), executor="fastest", rounds=1)
    assert isinstance(trainer.executor.placement, Sequential) and "Own is no elementwise optimiser" in trainer.notes[0]
