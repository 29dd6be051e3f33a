"""LoRA's layers compute the same as merged weights, and only the chosen layers of a network are adapted and trained."""

import copy
import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import SGD, TinyData, assert_close, problem_of, train
from reference import fedavg
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

import flcog
from flcog.commands.cli import main
from flcog.models import MLP, VGG11, LoRA, ResNet18, SimpleCNN
from flcog.models.lora import Adapter, adapters


def trained(model: nn.Module) -> list[str]:
    return [name for name, value in model.named_parameters() if value.requires_grad]


def stirred(model: nn.Module) -> nn.Module:
    """The model with random matrices B. In a new adapter, B is zero, and the adapter changes nothing."""
    for _, adapter in adapters(model):
        nn.init.normal_(adapter.B)
    return model


class Conv1D(nn.Module):
    """The linear layer of GPT-2 in transformers. Its weight has the shape [inputs, outputs]."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.weight, self.bias = nf, nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 7), (3, 5)),
    "linear-of-tokens": (lambda: nn.Linear(5, 7, bias=False), (3, 4, 5)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1, dilation=2), (2, 3, 9, 9)),
    "reflecting": (lambda: nn.Conv2d(3, 4, (3, 1), padding=(1, 0), padding_mode="reflect"), (2, 3, 6, 6)),
    "gpt": (lambda: Conv1D(7, 5), (3, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_its_merged_weight_would(name: str) -> None:
    build, shape = LAYERS[name]
    layer, x = build().double(), torch.randn(shape, dtype=torch.float64)
    adapter = Adapter(copy.deepcopy(layer), rank=2, alpha=3.0).double()
    assert torch.equal(adapter(x), layer(x)), "a new adapter changes nothing"
    nn.init.normal_(adapter.B)
    change = 3.0 / 2 * adapter.B @ adapter.A.flatten(1)
    merged = copy.deepcopy(layer)
    merged.weight.data += change.T if name == "gpt" else change.view_as(layer.weight)
    torch.testing.assert_close(adapter(x), merged(x))
    torch.testing.assert_close(adapter.weight, merged.weight.data)
    assert torch.linalg.matrix_rank(change) == 2
    assert not torch.allclose(adapter(x), layer(x))


def test_layers_whose_weights_are_read_by_others_are_adapted_too() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    plain, x = copy.deepcopy(layer), torch.randn(2, 5, 8)
    adapted = stirred(LoRA(layer, rank=2))
    assert [name for name, _ in adapters(adapted)] == ["self_attn.out_proj", "linear1", "linear2"]
    outputs = adapted(x)
    with torch.no_grad():
        torch.testing.assert_close(adapted.eval()(x), outputs)  # in evaluation mode, torch reads the weights itself
    assert not torch.allclose(outputs, plain(x))
    outputs.sum().backward()
    assert all(adapter.A.grad.norm() > 0 and adapter.B.grad.norm() > 0 for _, adapter in adapters(adapted))


def test_only_adapters_and_the_head_train() -> None:
    network = LoRA(MLP(4, (8, 8), 3), rank=2, alpha=4)
    assert isinstance(network, MLP) and network.hidden[0].scale == 2
    assert trained(network) == ["hidden.0.A", "hidden.0.B", "hidden.2.A", "hidden.2.B", "head.weight", "head.bias"]
    adapted = LoRA(MLP(4, (8, 8), 3), targets=["hidden.2", "head"])
    assert trained(adapted) == ["hidden.2.A", "hidden.2.B", "head.weight", "head.bias"]
    chosen = LoRA(MLP(4, (8, 8), 3), targets=[r"\.0$", "head"], trained=[r"hidden.2.*bias"])
    assert trained(chosen) == ["hidden.0.A", "hidden.0.B", "hidden.2.bias", "head.A", "head.B"]
    plain = LoRA(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))
    assert trained(plain) == ["0.A", "0.B", "2.A", "2.B"]


def test_convolutions_are_adapted_where_nothing_else_can_be() -> None:
    assert {name.split(".")[0] for name, _ in adapters(LoRA(VGG11()))} == {"hidden"}
    network = LoRA(ResNet18(num_classes=3), rank=1)
    assert len(list(adapters(network))) == 20
    grouped = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 8, 1))
    assert [name for name, _ in adapters(LoRA(grouped))] == ["1"]


@pytest.mark.slow
def test_a_frozen_batchnorm_keeps_its_statistics() -> None:
    network = LoRA(ResNet18(num_classes=3, stem="3x3"), rank=1).train()
    before = copy.deepcopy(network.state_dict())
    images = torch.randn(4, 3, 8, 8)
    outputs = network(images)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    torch.testing.assert_close(network.eval()(images), outputs)
    alive = LoRA(ResNet18(num_classes=3, stem="3x3"), trained=["bn", "head"]).train()
    before = copy.deepcopy(alive.state_dict())
    alive(images)
    moved = {name for name, value in alive.state_dict().items() if not torch.equal(value, before[name])}
    assert "body.bn1.running_mean" in moved


def test_it_trains_as_a_parametrised_weight_does() -> None:
    """A federated run equals the reference with a network whose weights torch's parametrisation computes from A and B."""

    class Sum(nn.Module):
        def __init__(self, adapter: Adapter) -> None:
            super().__init__()
            self.A, self.B = (nn.Parameter(value.detach().clone()) for value in (adapter.A, adapter.B))

        def forward(self, weight: Tensor) -> Tensor:
            return weight + 8.0 * self.B @ self.A

    network = LoRA(MLP(6, (8,), 3), rank=2)
    oracle = MLP(6, (8,), 3).requires_grad_(False)
    oracle.hidden[0].load_state_dict(network.hidden[0].layer.state_dict())
    oracle.head.load_state_dict(network.head.state_dict())
    oracle.head.requires_grad_()
    register_parametrization(oracle.hidden[0], "weight", Sum(network.hidden[0]))
    trainer = train(module=flcog.Classifier(network, SGD), data=TinyData())
    final = fedavg.run(problem_of(trainer, flcog.Classifier(oracle, SGD), SGD))
    expected = {
        "hidden.0.A": final["hidden.0.parametrizations.weight.0.A"],
        "hidden.0.B": final["hidden.0.parametrizations.weight.0.B"],
        "head.weight": final["head.weight"],
        "head.bias": final["head.bias"],
    }
    assert_close(trainer.state, expected)
    assert expected["hidden.0.B"].norm() > 1e-2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2.5}, "rank must be a whole number of at least 1; got 2.5"),
        ({"alpha": 0.0}, "alpha must be positive; got 0.0"),
        ({"targets": ["query"]}, r"LoRA finds no layer that targets=\['query'\] name in MLP that it can adapt; it has hidden.0$"),
        (
            {"trained": [""]},
            "LoRA finds no linear layer or ungrouped convolution in MLP that it can adapt; it has none of either",
        ),
    ],
)
def test_what_it_refuses(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LoRA(MLP(4, (8,), 3), **options)


@pytest.mark.usefixtures("command_line")
@pytest.mark.slow
def test_the_shipped_config_sends_adapters_and_the_head_alone(tmp_path: Path) -> None:
    small = ["--trainer.rounds=1", "--trainer.local_steps=1", "--data.num_clients=2", "--trainer.logger=false"]
    main(["fit", "-c", "quickstart", "-c", "lora", *small, f"--trainer.default_root_dir={tmp_path}"])
    (table,) = tmp_path.glob("*/metrics.csv")
    with table.open(newline="") as file:
        (row,) = csv.DictReader(file)
    whole = sum(value.numel() for value in SimpleCNN(in_channels=1, num_classes=10).parameters())
    assert 0 < float(row["comm/up_bytes"]) < 2 * 4 * whole / 3
