"""ClipUpdate clips the norm of the change of the parameters."""

from functools import partial

import pytest
import torch
from contracts.case import Case
from harness import BatchNormMLP, classifier, train
from reference import clip_update

from flcog.callbacks import SCAFFOLD, ClipUpdate, FedDC, FedPVR
from flcog.method import Context, Envelope, GlobalModel, Method
from methods.server_steps import gap_to_clients

CASES: dict[str, Case] = {
    "ClipUpdate": Case(ClipUpdate(norm=0.1), partial(clip_update.run, norm=0.1), neutral=ClipUpdate(norm=1e9)),
    "ClipUpdate with statistics": Case(
        ClipUpdate(norm=0.1), partial(clip_update.run, norm=0.1), module=partial(classifier, network=BatchNormMLP)
    ),
}


def test_only_the_change_of_the_parameters_is_measured_and_shortened() -> None:
    delta, message = torch.tensor([3.0, 4.0]), {"steps": torch.tensor(120.0), "count": torch.tensor(7)}
    before = Envelope({"w": delta}, {"mean": torch.tensor([86.0])}, {"Method": message}, {}, {"loss": delta})
    for norm, factor in ((0.5, 0.1), (1e6, 1.0)):
        after = ClipUpdate(norm=norm).send(before, Context(GlobalModel({}, {}), *[{}] * 5, 0, 1, None, None))[0]  # type: ignore[arg-type]
        torch.testing.assert_close(after.delta["w"], factor * delta)
        assert after._replace(delta=before.delta) == before


@pytest.mark.parametrize("method", [SCAFFOLD(), FedPVR(layers=""), FedDC()], ids=lambda method: method.name)
def test_the_servers_control_variate_stays_the_mean_of_the_clients(method: Method) -> None:
    trainer = train(ClipUpdate(norm=0.01), method, rounds=3)
    for slot, server in trainer.servers[method.name].items():
        difference = gap_to_clients(trainer, method.name, slot, slot)
        assert all(value.any() and difference[name].abs().max() < 1e-12 for name, value in server.items())
