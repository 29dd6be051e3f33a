"""Three clients in three rounds of Lightning's loops equal the methods' references in plain torch, for modules with hooks of steps."""

from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, assert_close, classifier, distance, make_trainer, problem_of, train
from reference import fedavg, feddyn, fedprox, fedsam, moon, scaffold
from reference.common import State
from torch import Tensor, nn

import flcog
from faithful.modules import Gan
from flcog.callbacks import MOON, SCAFFOLD, FedDyn, FedProx, FedSAM
from flcog.models import MLP

Run = Callable[..., State]


def halving(parameters: Any, lr: float = 0.2) -> torch.optim.Optimizer:
    """SGD whose gradients are halved first."""
    optimizer = torch.optim.SGD(parameters, lr, weight_decay=1e-2)
    optimizer.register_step_pre_hook(
        lambda *args: [value.grad.mul_(0.5) for value in optimizer.param_groups[0]["params"]] and None
    )
    return optimizer


class Steps:
    """Hooks of a step, by which the module halves its gradients itself."""

    calls = 0

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def on_before_optimizer_step(self: Any, optimizer: Any) -> None:
        for value in self.parameters():
            value.grad *= 0.5

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        self.calls += 1
        optimizer.step(closure=optimizer_closure)

    def configure_optimizers(self: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.2, weight_decay=1e-2)


class Lit(Steps, L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = MLP(NUM_FEATURES, (8,), NUM_CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])


class Client(Steps, flcog.Classifier):
    """The same as a client module, which has features."""

    def __init__(self) -> None:
        super().__init__(classifier().model)


CASES: dict[str, tuple[list[flcog.Method], type[Any], Callable[[Any], State]]] = {
    "FedAvg": ([], Lit, fedavg.run),
    "FedProx": ([FedProx(mu=0.5)], Lit, lambda problem: fedprox.run(problem, 0.5)),
    "SCAFFOLD": ([SCAFFOLD()], Lit, scaffold.run),
    "FedSAM": ([FedSAM(rho=0.05)], Lit, lambda problem: fedsam.run(problem, 0.05)),
    "FedDyn": ([FedDyn(alpha=0.3)], Lit, lambda problem: feddyn.run(problem, 0.3)),
    "FedDyn of a client module": ([FedDyn(alpha=0.3)], Client, lambda problem: feddyn.run(problem, 0.3)),
    "MOON": ([MOON(mu=2.0, projection=None)], Client, lambda problem: moon.run(problem, 2.0, 0.5)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_loop_by_hand(case: str) -> None:
    methods, kind, reference = CASES[case]
    trainer = train(*methods, module=(module := kind()), clients_per_round=3)
    assert trainer.executor.name == "lightning" and module.calls >= 36
    problem = problem_of(trainer, kind(), halving)
    assert_close(trainer.state, reference(problem), 1e-12)
    assert case == "FedAvg" or distance(trainer.state, fedavg.run(problem)) > 1e-4


@pytest.mark.parametrize("method", [FedProx(), SCAFFOLD(), FedSAM()], ids=lambda method: method.name)
def test_manual_optimisation_has_no_place_for_them(method: flcog.Method) -> None:
    with pytest.raises(ValueError, match=f"^{method.name} changes the loss or the gradient of a step, and Gan takes [^\n]*$"):
        make_trainer(None, method).prepare(Gan(), flcog.datamodules.Quadratics())
