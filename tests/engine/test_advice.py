"""``flcog check`` reports lost contributions, unused values and options without effect. ``fit`` gives no advice, it only refuses."""

import copy
import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from contracts.registry import CASES
from harness import SGD, TinyData, classifier, make_trainer, train

import flcog
from flcog.callbacks import (
    SCAFFOLD,
    ClipGradient,
    EqualWeights,
    FedAvgM,
    FedDC,
    FedDisco,
    FedDyn,
    FedProx,
    FedSAM,
    Stragglers,
)
from flcog.commands.cli import main
from flcog.method import Method
from flcog.run.advice import CHAINS
from flcog.schedules import Piecewise


@dataclass(frozen=True)
class Median(Method):
    """Takes the median of the clients' updates, for every parameter of the model."""

    individual_uploads: ClassVar[bool] = True

    def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
        return {name: torch.stack([u.delta[name] for u in messages.individual]).median(0).values for name in params}, server


@dataclass(frozen=True)
class Replacing(Method):
    """Ignores the values that it receives, in several hooks."""

    def correct_gradient(self, gradient: Any, params: Any, ctx: Any) -> Any:
        return {name: value.sign() for name, value in params.items()}

    def after_step(self, apply: Any, params: Any, before: Any, batch: Any, ctx: Any) -> Any:
        return dict(ctx.received.params), ctx.state


@dataclass(frozen=True)
class Shifting(Method):
    """Changes the values that it receives, in the same hooks."""

    def correct_gradient(self, gradient: Any, params: Any, ctx: Any) -> Any:
        return {name: 2 * value for name, value in gradient.items()}

    def after_step(self, apply: Any, params: Any, before: Any, batch: Any, ctx: Any) -> Any:
        return {name: value + 1 for name, value in params.items()}, ctx.state


@dataclass(frozen=True)
class Unseen(Method):
    """Reads an input that another of its hooks makes."""

    def start(self, apply: Any, params: Any, ctx: Any) -> Any:
        return params, {"made": torch.zeros(())}

    def correct_gradient(self, gradient: Any, params: Any, ctx: Any) -> Any:
        return {name: torch.zeros_like(value) + ctx.inputs["made"] for name, value in params.items()}


def advice(*methods: Method, module: Any = None, data: Any = None, **options: Any) -> list[str]:
    return list(map(str, make_trainer(None, *methods, **options).check(module or classifier(), data or TinyData())))


def test_a_chain_that_is_cut_is_said_hook_by_hook() -> None:
    expected = {
        f"Replacing.{hook} replaces {CHAINS[hook][1]}, so the work of Shifting is lost: list Replacing before Shifting"
        for hook in ("correct_gradient", "after_step")
    }
    assert set(advice(Shifting(), Replacing())) == expected
    assert advice(Replacing(), Shifting()) == []
    assert advice(Shifting(stop_round=1), Replacing(start_round=1)) == [], "they never meet"
    text = "Unseen.correct_gradient replaces the gradient, so the work of ClipGradient is lost: list Unseen before ClipGradient"
    assert advice(ClipGradient(), Unseen()) == [text], "its hooks are called one after another, as in a round"


def test_a_server_step_that_is_replaced_is_said() -> None:
    text = "Median.server_step replaces the server's step, so the work of FedAvgM is lost: list Median before FedAvgM"
    assert advice(FedAvgM(beta=0.5), Median(start_round=1)) == [text]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(FedAvgM(beta=0.5), Median(start_round=1))  # fit gives no advice


@pytest.mark.parametrize(
    "methods",
    [
        (SCAFFOLD(), ClipGradient(max_norm=1.0), FedAvgM()),
        (FedProx(), FedSAM(), SCAFFOLD(), FedDisco(), Stragglers(min_steps=1, max_steps=3)),
        (EqualWeights(), FedProx()),
    ],
    ids=lambda methods: "+".join(method.name for method in methods),
)
def test_what_composes_is_not_accused(methods: tuple[Method, ...]) -> None:
    assert advice(*methods) == []


def test_what_never_comes_is_a_warning() -> None:
    text = "FedProx.start_round is 5, so the method never acts in a run of 5 rounds: lower it, or raise trainer.rounds"
    assert advice(FedProx(start_round=5), rounds=5) == [text]
    assert advice(FedProx(start_round=4), rounds=5) == []

    def module(*boundaries: int) -> flcog.Classifier:
        schedule = Piecewise([1.0] * len(boundaries) + [0.1], list(boundaries))
        return flcog.Classifier(classifier().model, optimizer=SGD, lr_schedule=schedule)

    text = "{} changes after round {}, which a run of 5 rounds never reaches: lower the boundary, or raise trainer.rounds"
    assert advice(module=module(2, 9), rounds=5) == [text.format("Classifier.lr_schedule", 9)]
    assert advice(module=module(2, 4), rounds=5) == []

    @dataclass(frozen=True)
    class Scheduled(Method):
        strength: Piecewise = field(default_factory=partial(Piecewise, [1.0, 0.1], [100]))

    assert advice(Scheduled(), rounds=5) == [text.format("Scheduled.strength", 100)]


def test_weights_that_are_replaced_are_said() -> None:
    text = "{1}.weights replaces the weights of {0}: swap them to weigh by {0}"
    assert advice(FedDisco(), FedDyn()) == [text.format("FedDisco", "FedDyn")]
    assert advice(EqualWeights(), FedDisco()) == [text.format("EqualWeights", "FedDisco")]
    assert len(advice(EqualWeights(), FedDisco(), FedDC())) == 3
    for fine in ((FedDyn(), FedDisco()), (FedDC(), FedDyn()), (FedDisco(), FedAvgM()), (FedDisco(),)):
        assert advice(*fine) == []
    assert advice(FedDisco(stop_round=2), EqualWeights(start_round=2)) == []
    assert len(advice(FedDisco(stop_round=3), EqualWeights(start_round=2))) == 1


def test_a_check_leaves_model_and_trainer_as_they_are() -> None:
    trainer, module = make_trainer(None, SCAFFOLD(), local_steps=3), classifier()
    before = copy.deepcopy(module.state_dict())
    assert trainer.check(module, TinyData()) == []
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert trainer.settings.local_steps == 3
    with pytest.raises(ValueError, match="no run yet"):
        trainer.run  # noqa: B018


@pytest.mark.usefixtures("command_line")
@pytest.mark.slow
def test_the_command_prints_a_line_per_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["check", "-c", "quickstart", "--trainer.rounds", "2", "--trainer.logger", "false"]
    main([*options, "-c", "methods/fedprox"])
    assert capsys.readouterr().out == "nothing to advise\n"
    main([*options, "-c", "methods/fedprox", "--trainer.callbacks.FedProx.start_round", "7"])
    assert capsys.readouterr().out == (
        "FedProx.start_round is 7, so the method never acts in a run of 2 rounds: lower it, or raise trainer.rounds\n"
    )
    with pytest.raises(SystemExit, match="2"):
        main([*options, "--trainer.clients_per_round", "100000"])
    assert "flcog: error: clients_per_round=100000 but the federation has" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name != "LeashPretraining"])  # its schedule outlasts three rounds
def test_a_method_alone_is_not_accused(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    assert make_trainer(tmp_path, case.method, **case.options).check(case.module(case.optimizer), case.data()) == []
