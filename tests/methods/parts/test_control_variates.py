"""Control variates where the learning rate is 0."""

from functools import partial

import pytest
import torch
from harness import SGD, RecordingTrainer, classifier, few_quickly, train
from torch import Tensor
from torch.utils._pytree import tree_leaves

import flcog
from flcog.callbacks import SCAFFOLD, FedDC, FedPVR
from flcog.callbacks.scaffold import change_of_control
from flcog.method import ClientData, Context, GlobalModel, Method, Optimisation
from flcog.schedules import Piecewise


def scheduled(*values: float) -> flcog.Classifier:
    """A module with these factors on its learning rate, by round."""
    return flcog.Classifier(classifier().model, optimizer=SGD, lr_schedule=Piecewise(values, range(1, len(values))))


def variates(trainer: RecordingTrainer) -> list[Tensor]:
    """The states of the server and of all clients."""
    return tree_leaves((trainer.servers, trainer.states.by_client))


@pytest.mark.parametrize("executor", few_quickly(["loop", "vmap"], 1))
@pytest.mark.parametrize("method", [SCAFFOLD(), FedDC(), FedPVR()], ids=lambda method: method.name)
def test_a_round_with_the_rate_0_changes_no_control_variate(method: Method, executor: str) -> None:
    runs = partial(train, method, executor=executor, clients_per_round=8)
    before, after = (runs(module=scheduled(1.0, 0.0), rounds=rounds) for rounds in (1, 2))
    assert all(value.any() for value in variates(before))
    assert all(torch.equal(a, b) for a, b in zip(variates(before), variates(after), strict=True))
    assert not any(value.any() for value in variates(runs(module=scheduled(0.0), rounds=1)))


@pytest.mark.parametrize(("lr", "expected"), [(0.0, 0.0), (0.5, (3 - 2) / (4 * 0.5) - 1)])
def test_the_rate_may_be_a_tensor_under_vmap(lr: float, expected: float) -> None:
    def change(y: Tensor, num_steps: Tensor) -> Tensor:
        optimisation = Optimisation(torch.tensor(lr), 0.0, 0.0)  # type: ignore[arg-type]
        received, data = GlobalModel({"w": torch.tensor([3.0])}, {}), ClientData(8, 0.5, {})
        ctx = Context(received, {}, {}, {}, {}, {}, 0, num_steps, data, optimisation)
        return change_of_control({"w": torch.ones(1)}, {"w": y}, ctx, num_steps)["w"]

    trained = torch.full((2, 1), 3.0 if lr == 0 else 2.0)
    assert torch.func.vmap(change)(trained, torch.tensor([4, 4])).tolist() == [[expected]] * 2
