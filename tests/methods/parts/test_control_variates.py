"""Control variates where the learning rate is 0, and where clients start from a model of their own."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from harness import SGD, RecordingTrainer, TinyData, assert_close, classifier, few_quickly, states_by_client, train
from torch import Tensor
from torch.utils._pytree import tree_leaves

import flcog
from flcog.callbacks import IFCA, SCAFFOLD, FedALA, FedAMP, FedDC, FedFomo, FedPAC, FedPVR, KeepLocal
from flcog.callbacks.scaffold import change_of_control
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientData, ClientView, Context, GlobalModel, Method, Optimisation, Upload
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
        received, data = GlobalModel({}, {}), ClientData(8, 0.5, {})
        ctx = Context(received, {}, {}, {}, {}, {}, 0, num_steps, data, optimisation, {"w": torch.tensor([3.0])})
        return change_of_control({"w": torch.ones(1)}, {"w": y}, ctx, num_steps)["w"]

    trained = torch.full((2, 1), 3.0 if lr == 0 else 2.0)
    assert torch.func.vmap(change)(trained, torch.tensor([4, 4])).tolist() == [[expected]] * 2


@dataclass(frozen=True)
class Watched(SCAFFOLD):
    """Keeps the mean of the gradients over a client's local steps, as they were before the correction."""

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return super().init_client(params, buffers, client) | {
            "g": {name: torch.zeros_like(value) for name, value in params.items()}
        }

    def after_step(self, apply: Apply, params: Params, before: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        c, own, g = ctx.broadcast["c"], ctx.state["c"], ctx.state["g"]
        gradient = {name: (before[name] - params[name]) / ctx.optimisation.lr + own[name] - c[name] for name in c}
        return params, ctx.state | {"g": {name: g[name] * (ctx.step > 0) + gradient[name] / ctx.num_steps for name in g}}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        upload = super().finish_client(delta, params, ctx)
        return upload._replace(state=ctx.state | upload.state)


@pytest.mark.parametrize("executor", few_quickly(["loop", "vmap"], 1))
@pytest.mark.parametrize(
    "personal",
    [KeepLocal("head"), FedALA(), FedAMP(own_weight=0.5), FedFomo(models=3), FedPAC(0.1), IFCA()],
    ids=lambda it: it.name,
)
def test_a_control_variate_is_the_mean_gradient_wherever_the_client_starts(personal: Method, executor: str) -> None:
    data = TinyData(client_test=0.2, client_val=0.2)
    trainer = train(personal, Watched(), executor=executor, data=data, rounds=3, clients_per_round=8)
    means, controls = (states_by_client(trainer, "Watched", key) for key in "gc")
    for client, found in controls.items():
        assert_close(found, means[client], 1e-9)
