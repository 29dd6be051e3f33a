"""A round without stages runs no operators for them, and passes its tensors on unchanged. Checks run no operators either."""

from collections import Counter
from typing import Any

import pytest
from harness import TinyData, classifier, make_trainer
from torch.utils._python_dispatch import TorchDispatchMode

from flcog.callbacks import (
    SCAFFOLD,
    Bucketing,
    ClipUpdate,
    FedProx,
    Krum,
    Mimic,
    OverSelect,
    PoissonSampling,
    SignFlip,
    SystemModel,
    TopK,
)
from flcog.method import Method


class Counted(TorchDispatchMode):
    """Counts the calls of torch's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def operators_of_a_round(executor: str, *methods: Method) -> Counter[str]:
    """Count the operators of the second round, because the first round also starts the run."""
    trainer = make_trainer(None, *methods, executor=executor, local_steps=2)
    trainer.prepare(classifier(), TinyData())
    trainer.train_round()
    with Counted() as counted:
        trainer.train_round()
    return counted.counts


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("method", [FedProx(), SCAFFOLD()], ids=lambda method: method.name)
def test_stages_that_do_not_act_cost_no_operator(executor: str, method: Method) -> None:
    plain = operators_of_a_round(executor, method)
    later: list[Method] = [ClipUpdate(start_round=9), TopK(fraction=0.1, error_feedback=True, start_round=9)]
    later += [Krum(f=0, start_round=9), Bucketing(start_round=9), SignFlip(start_round=9), Mimic(start_round=9)]
    later += [PoissonSampling(start_round=9), SystemModel(start_round=9), OverSelect(start_round=9)]
    assert operators_of_a_round(executor, method, *later) == plain
    assert operators_of_a_round(executor, method, ClipUpdate()).total() > plain.total()
