"""Models for an evaluation that a method makes NaN would be scored as if they predicted the first class."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import TinyData, train

from flcog import Method, Personal
from flcog.callbacks import FineTune
from flcog.method import Personalisation
from flcog.method.finite import is_finite

WEIGHT = "model.hidden.0.weight"


@dataclass(frozen=True)
class Evaluates(Method):
    factor: float

    def evaluate_at(self, server: Any, params: Any) -> Any:
        return {name: value * self.factor for name, value in params.items()}


@dataclass(frozen=True)
class Keeps(Personalisation):
    factor: float

    def personal(self, params: Any, ctx: Any) -> Personal:
        return Personal({name: value * self.factor for name, value in params.items()})


def figures(*methods: Method) -> dict[str, float]:
    return train(*methods, rounds=1, local_steps=1, data=TinyData(client_test=0.25)).evaluate()


@pytest.mark.parametrize("factor", [torch.nan, torch.inf])
def test_a_method_that_makes_the_model_nan_is_named(factor: float) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(f"Evaluates.evaluate_at returned {WEIGHT} with NaN or infinite values")):
        figures(Evaluates(factor))
    said = rf"^Keeps\.personal returned {re.escape(WEIGHT)} of client \d with NaN or infinite values, though the parameters"
    with pytest.raises(ValueError, match=said):
        figures(Keeps(factor))


def test_finite_models_are_scored() -> None:
    assert figures(Evaluates(1.0), Keeps(1.0))["test/personal_accuracy_mean"] > 0


def test_a_model_that_was_nan_before_is_no_fault_of_the_method() -> None:
    trainer = train(Evaluates(1.0), rounds=1, local_steps=1)
    trainer.run.server.params = {name: value * torch.nan for name, value in trainer.run.params.items()}
    assert trainer.evaluate()["test/loss"] != trainer.evaluate()["test/loss"], "NaN, as without the method"


def test_tuning_that_diverges_warns() -> None:
    trainer = train(FineTune(steps=30), rounds=1, local_steps=1, data=TinyData(client_test=0.25))
    trainer.run.server.rates = [1e200]
    with pytest.warns(
        UserWarning, match=r"FineTune: the personal model of client \d is NaN or infinite after 30 steps of tuning"
    ):
        trainer.evaluate()


def test_a_norm_that_overflows_is_no_infinity() -> None:
    assert is_finite({"w": torch.full((4,), 3e38)})
    assert not is_finite({"w": torch.tensor([1.0, torch.inf])})
    assert is_finite({"n": torch.ones(2, dtype=torch.int64)})
