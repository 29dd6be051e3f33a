"""A round without stages runs no operators for them, and passes its tensors on unchanged. Checks run no operators either."""

from collections import Counter
from typing import Any

import pytest
import torch
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
from flcog.client.program import ClientTensors, Program
from flcog.method import GlobalModel, Method, Optimisation, Upload
from flcog.method.returned import check_pair, check_scalar, check_upload


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


def test_the_envelope_of_fedavg_is_made_without_an_operator() -> None:
    trainer = make_trainer(None)
    trainer.prepare(classifier(), TinyData())
    model = trainer.run.engine.model
    program = Program(model, [], [], GlobalModel(dict(model.params), {}), Optimisation(0.1, 0.0, 0.0))
    delta = {name: torch.ones_like(value) for name, value in model.params.items()}
    with Counted() as counted:
        envelope, _, manifest = program.finish(delta, dict(model.params), {}, ClientTensors([], [], [], 4, 10, 0.5))
    assert not counted.counts and manifest.fields is None
    assert all(envelope.delta[name] is value for name, value in delta.items())


def test_results_of_hooks_are_checked_without_an_operator() -> None:
    method, loss, params = FedProx(), torch.zeros(()), {"weight": torch.zeros(4, 8), "bias": torch.zeros(4)}
    upload = Upload(dict(params), {})
    with Counted() as counted:
        assert check_pair(method, "start", (dict(params), {}), params, "inputs") == (params, {})
        assert check_scalar(method, "loss", loss) is loss
        assert check_upload(method, upload, params) == upload
    assert not counted.counts
