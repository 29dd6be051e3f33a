"""Errors of clients name the client. Clients that send NaN or infinite numbers are named or dropped."""

import pytest
from harness import NUM_CLASSES, NUM_FEATURES, train
from torch import Tensor, nn

import flcog


class Broken(flcog.Classifier):
    """Fails in its third call, which is the third step of the first client."""

    calls = 0

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        Broken.calls += 1
        if Broken.calls == 3:
            raise KeyError("a bug in the user's loss")
        return super().per_example_loss(outputs, targets)


def test_an_error_inside_a_client_names_it() -> None:
    Broken.calls = 0
    with pytest.raises(KeyError) as caught:
        train(module=Broken(flcog.models.MLP(NUM_FEATURES, (), NUM_CLASSES)), clients_per_round=8)
    assert caught.value.__notes__ == ["in client 0, round 1, local step 3 of 4"]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_an_error_inside_a_layer_names_it_and_both_widths(executor: str) -> None:
    network = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.ReLU(), nn.Sequential(nn.Linear(9, NUM_CLASSES)))
    with pytest.raises(RuntimeError, match="x8 and 9x3") as caught:
        train(module=flcog.Classifier(network), clients_per_round=8, executor=executor)
    layer, client, *_ = caught.value.__notes__
    assert layer == "in the layer model.2.0, Linear(in_features=9, out_features=3, bias=True)" and client.startswith("in client")
