import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import jsonargparse
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from harness import instantiated
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from flcog import Classifier, FederatedTrainer
from flcog.datamodules import RandomData
from flcog.models import (
    CIFAR100CNN,
    MLP,
    VGG11,
    Dropout,
    FastText,
    FeatureModel,
    FedDynCNN,
    FedRepCNN,
    LeNet,
    PflCNN,
    ResNet18,
    SampleConvNet,
    SimpleCNN,
    SoftmaxRegression,
    TextCNN,
)

# Parameter counts are from the papers and their code (SimpleCNN, CIFAR100CNN, VGG11), or from the formulas of the layers.
RESNET = 11_689_512 - 513 * 1000  # torchvision documents 11,689,512 with its 1000-class head
MODELS: dict[str, tuple[Callable[[], FeatureModel], tuple[int, ...], int]] = {
    "SimpleCNN": (SimpleCNN, (3, 32, 32), 62_006),
    "SimpleCNN-grey": (lambda: SimpleCNN(in_channels=1), (1, 28, 28), 44_426),
    "CIFAR100CNN": (CIFAR100CNN, (3, 32, 32), 69_380),
    "LeNet-dropout": (
        lambda: LeNet(image_size=16, channels=(4,), kernel_size=3, hidden=(9, 8), dropout=0.6),
        (3, 16, 16),
        (27 + 1) * 4 + (4 * 49 + 1) * 9 + 10 * 8 + 9 * 10,
    ),
    "McMahan's CNN": (
        lambda: LeNet(1, channels=(32, 64), hidden=(512,), padding=2),
        (1, 28, 28),
        26 * 32 + 801 * 64 + 3137 * 512 + 513 * 10,  # 1,663,370, as the paper prints
    ),
    "FedDynCNN": (FedDynCNN, (3, 32, 32), 76 * 64 + 1601 * 64 + 1601 * 384 + 385 * 192 + 193 * 10),
    "FedRepCNN": (FedRepCNN, (3, 32, 32), 76 * 64 + 1601 * 64 + 1601 * 120 + 121 * 64 + 65 * 10),
    "PflCNN": (PflCNN, (3, 32, 32), 28 * 32 + 289 * 64 + 12_545 * 128 + 129 * 10),
    "PflCNN-grey": (lambda: PflCNN(in_channels=1, image_size=7), (1, 7, 7), 10 * 32 + 289 * 64 + 65 * 128 + 129 * 10),
    "VGG11": (VGG11, (3, 32, 32), 9_750_922),
    "VGG11-large": (lambda: VGG11(image_size=70), (3, 70, 70), 9_750_922 + 3 * 512 * 512),
    "ResNet18": (ResNet18, (3, 32, 32), RESNET + 513 * 10),
    "ResNet18-small": (lambda: ResNet18(stem="3x3", norm="group"), (3, 8, 8), RESNET - 64 * 3 * (49 - 9) + 513 * 10),
    "ResNet18-grey": (lambda: ResNet18(in_channels=1), (1, 32, 32), RESNET - 64 * 2 * 49 + 513 * 10),
    "SampleConvNet": (SampleConvNet, (1, 28, 28), 65 * 16 + 257 * 32 + 513 * 32 + 33 * 10),
    "TextCNN": (lambda: TextCNN(vocab_size=50), (12,), 50 * 32 + (3 + 4 + 5) * 32 * 100 + 300 + 301 * 4),
    "FastText": (lambda: FastText(vocab_size=50), (12,), 50 * 32 + 33 * 32 + 33 * 4),
    "SoftmaxRegression": (SoftmaxRegression, (1, 28, 28), 7_850),
    "MLP": (MLP, (53,), 54 * 64 + 65 * 64 + 65),
    "MLP-linear": (lambda: MLP(in_features=5, hidden=()), (5,), 6),
}


def inputs(shape: tuple[int, ...], *batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if len(shape) == 1 and shape[0] == 12:
        return torch.randint(0, 50, (*batch, *shape), generator=generator)
    return torch.randn(*batch, *shape, generator=generator)


@pytest.mark.parametrize("name", MODELS)
def test_contract(name: str) -> None:
    build, shape, num_parameters = MODELS[name]
    model = build()
    assert sum(p.numel() for p in model.parameters()) == num_parameters
    x = inputs(shape, 2)
    model.eval()
    features = model.features(x)
    assert features.shape == (2, model.num_features)
    assert model.head.in_features == model.num_features
    assert torch.equal(model(x), model.head(features))
    if len(shape) == 3:
        torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), model(x), rtol=1e-4, atol=1e-5)
    assert list(model.state_dict())[-2:] == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name.startswith("VGG11") or name == "ResNet18" else ())
        for name in MODELS
        if name != "ResNet18-grey"
    ],
)
def test_vmap_equals_loop(name: str) -> None:
    build, shape, _ = MODELS[name]
    torch.manual_seed(0)
    # In double precision, because BatchNorm over two samples magnifies rounding errors.
    models = [build().double(), build().double()]
    for k, model in enumerate(models):
        set_keys(model, k + 5)
    template = copy.deepcopy(models[0])
    params, buffers = stack_module_state(models)
    params = {key: value.detach() for key, value in params.items()}
    x = inputs(shape, 2, 2)
    x = x.double() if x.is_floating_point() else x

    def loss(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        buffers = {key: value.clone() for key, value in buffers.items()}
        return functional_call(template, (params, buffers), (x,)).square().mean(), buffers

    gradients, (losses, buffers) = vmap(grad_and_value(loss, has_aux=True))(params, buffers, x)
    for k, model in enumerate(models):
        value = model(x[k]).square().mean()
        value.backward()
        torch.testing.assert_close(losses[k], value.detach())
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[key][k], parameter.grad, msg=key)
        for key, buffer in model.named_buffers():
            torch.testing.assert_close(buffers[key][k], buffer, msg=key)


def set_keys(model: nn.Module, key: int) -> None:
    for name, buffer in model.named_buffers():
        if name.endswith("dropout_key"):
            buffer.fill_(key)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_lenet_against_functional(memory_format: torch.memory_format) -> None:
    """The layers have the order of the papers: ReLU before the pooling."""
    model = SimpleCNN()
    c1, c2 = model.convolutions[0], model.convolutions[3]
    f1, f2 = model.hidden[0], model.hidden[2]
    x = inputs((3, 32, 32), 4).to(memory_format=memory_format)
    y = F.max_pool2d(F.relu(F.conv2d(x, c1.weight, c1.bias)), 2)
    y = F.max_pool2d(F.relu(F.conv2d(y, c2.weight, c2.bias)), 2)
    y = F.relu(F.linear(y.reshape(4, 400), f1.weight, f1.bias))
    y = F.relu(F.linear(y, f2.weight, f2.bias))
    torch.testing.assert_close(model.features(x), y)


@pytest.mark.filterwarnings("ignore:executor=vmap falls back")
@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.slow
def test_resnet_is_batched_in_full(norm: Literal["group", "batch"], tmp_path: Path) -> None:
    """No layer is computed client by client. torch would do so for an operation that it cannot batch, but its fallback is disabled."""
    trainer = FederatedTrainer(rounds=1, local_steps=1, executor="vmap", logger=False, default_root_dir=str(tmp_path))
    data = RandomData(shape=(16, 16, 3), num_samples=32, num_test_samples=0, num_clients=2, batch_size=8)
    trainer.prepare(Classifier(ResNet18(stem="3x3", norm=norm)), data)
    enabled = torch._C._functorch._is_vmap_fallback_enabled()
    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        trainer.train_round()
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(enabled)
    assert trainer.run.engine.clients.executor.name == "vmap"


def test_pfl_cnn_against_its_layers() -> None:
    """Without dropout, the layers have pfl-research's order. Initial weights are uniform up to Glorot's bounds."""
    model = PflCNN(dropout=(0.0, 0.0))
    c1, c2, (dense, head) = model.convolutions[0], model.convolutions[2], (model.hidden[1], model.head)
    x = inputs((3, 32, 32), 4)
    y = F.max_pool2d(F.relu(F.conv2d(F.relu(F.conv2d(x, c1.weight, c1.bias)), c2.weight, c2.bias)), 2)
    y = F.relu(F.linear(y.reshape(4, 12_544), dense.weight, dense.bias))
    torch.testing.assert_close(model(x), F.linear(y, head.weight, head.bias))
    for layer, fan_in, fan_out in ((c1, 27, 288), (c2, 288, 576), (dense, 12_544, 128), (head, 128, 10)):
        assert layer.weight.abs().max().item() == pytest.approx(math.sqrt(6 / (fan_in + fan_out)), rel=0.02)
    dropped = PflCNN().train()
    assert (dropped.features(x) == 0).double().mean() > (model.features(x) == 0).double().mean() + 0.1


def test_text_cnn_against_sums() -> None:
    model = TextCNN(vocab_size=9, embedding_dim=4, num_classes=2, kernel_sizes=(2, 3), num_filters=3).eval()
    tokens = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 0, 0, 0]])
    table = model.embedding.weight.detach().numpy()
    assert not table[0].any()
    expected = []
    for row in tokens.numpy():
        words = table[row]
        for convolution, size in zip(model.convolutions, (2, 3), strict=True):
            weight, bias = convolution.weight.detach().numpy(), convolution.bias.detach().numpy()
            windows = [words[i : i + size].T for i in range(5 - size + 1)]
            expected.append(np.max([np.maximum((weight * w).sum((1, 2)) + bias, 0) for w in windows], 0))
    np.testing.assert_allclose(model.features(tokens).detach().numpy(), np.reshape(expected, (2, 6)), rtol=1e-5, atol=1e-6)


def test_fast_text_against_sums() -> None:
    model = FastText(vocab_size=9, embedding_dim=4, num_classes=2)
    table, layers = model.embedding.weight.detach().numpy(), [model.hidden, model.head]
    assert not table[0].any()
    expected = np.array([(table[3] + table[1] + table[3]) / 5, table[2] / 5])  # padding is a part of the length
    for layer in layers:
        expected = expected @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    tokens = torch.tensor([[3, 1, 3, 0, 0], [2, 0, 0, 0, 0]])
    np.testing.assert_allclose(model(tokens).detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_text_cnn_pads_short_sentences_and_keeps_padding_at_zero() -> None:
    model = TextCNN(vocab_size=9, dropout=0.0)
    short = torch.tensor([[3, 1]])
    assert torch.equal(model(short), model(F.pad(short, (0, 3))))
    model(torch.tensor([[3, 1, 0, 0, 0, 0]])).sum().backward()
    assert not model.embedding.weight.grad[0].any()


def test_vgg_initialisation() -> None:
    for layer in VGG11().convolutions:
        if isinstance(layer, nn.Conv2d):
            assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / (9 * layer.out_channels)), rel=0.1)


def splitmix64(z: int) -> int:
    word = 2**64 - 1
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
    return z ^ (z >> 31)


@pytest.mark.parametrize("key", [0, 1, -7, 2**63 - 1, -(2**63)])
def test_dropout_against_integers(key: int) -> None:
    word, golden = 2**64 - 1, 0x9E3779B97F4A7C15
    start = splitmix64((key + golden) & word)
    bits = [splitmix64((start + i * golden) & word) for i in range(24)]
    # The hash is compared as a signed integer. Values in the lowest share p of the range are dropped.
    signed = [b - 2**64 if b >= 2**63 else b for b in bits]
    expected = torch.tensor([b >= 0.3 * 2**64 - 2**63 for b in signed]).view(2, 3, 4)
    dropout = Dropout(0.3)
    dropout.dropout_key.fill_(key)
    assert torch.equal(dropout(torch.ones(2, 3, 4)) != 0, expected)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_rate_and_independence(p: float) -> None:
    dropout = Dropout(p)
    masks = torch.stack([dropout(torch.ones(200, 300)) != 0 for _ in range(4)]).double()
    deviation = math.sqrt(p * (1 - p) / 60_000)
    assert (masks.mean((1, 2)) - (1 - p)).abs().max() < 5 * deviation
    # Whole rows or columns are not dropped together. A mask is correlated neither with the next mask nor with shifted masks.
    assert masks.mean(1).std() == pytest.approx(math.sqrt(p * (1 - p) / 200), rel=0.2)
    assert masks.mean(2).std() == pytest.approx(math.sqrt(p * (1 - p) / 300), rel=0.2)
    flat = masks.flatten(1)
    for other in (flat[1], flat[0].roll(1), flat[1].roll(1), flat[1].roll(-1), flat[0].roll(300)):
        assert abs(torch.corrcoef(torch.stack([flat[0], other]))[0, 1]) < 5 / math.sqrt(60_000)


def test_dropout_ignores_padding_rows() -> None:
    unpadded, padded = Dropout(), Dropout()
    x = torch.randn(5, 3, 2)
    for _ in range(2):
        assert torch.equal(padded(torch.cat([x, torch.zeros(3, 3, 2)]))[:5], unpadded(x))


def test_dropout_moves_on_and_can_be_set_back() -> None:
    dropout, x = Dropout(), torch.ones(4, 8)
    first, second = dropout(x), dropout(x)
    assert not torch.equal(first, second)
    dropout.dropout_key.fill_(0)
    assert torch.equal(dropout(x), first)
    dropout.dropout_key.fill_(1)
    assert torch.equal(dropout(x), second)


def test_dropout_scales_values_and_gradients() -> None:
    dropout, x = Dropout(0.2), torch.randn(50, 20, requires_grad=True)
    y = dropout(x)
    kept = y != 0
    torch.testing.assert_close(y, torch.where(kept, x / 0.8, 0.0))
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(kept, 1.25, 0.0))
    assert dropout(x.detach().bfloat16()).dtype == torch.bfloat16


def test_dropout_leaves_streams_checkpoints_and_evaluation_alone() -> None:
    dropout, x = Dropout(), torch.randn(4, 4)
    before = torch.get_rng_state()
    dropout(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert not dropout.state_dict()
    dropout.eval()
    assert dropout(x) is x
    assert dropout.dropout_key.item() == 1


@pytest.fixture(scope="module")
def torchvision_state(tmp_path_factory: pytest.TempPathFactory):
    """A file of weights in torchvision's form, and the network that was saved in it."""
    network = torchvision.models.resnet18(num_classes=7).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean)
    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.save(network.state_dict(), path)
    return path, network


@pytest.mark.slow
def test_resnet_loads_torchvision_weights(torchvision_state) -> None:
    path, network = torchvision_state
    x = inputs((3, 32, 32), 2)
    assert torch.equal(ResNet18(num_classes=7, weights=path).eval()(x), network(x))
    other_head = ResNet18(num_classes=3, weights=str(path)).eval()
    network.fc = nn.Identity()
    assert torch.equal(other_head.features(x), network(x))
    assert other_head(x).shape == (2, 3)


def test_resnet_refuses_other_files(tmp_path) -> None:
    (tmp_path / "text.pt").write_text("not a state dict")
    for name in ("missing.pt", "text.pt"):
        with pytest.raises(ValueError, match=r"^ResNet18: weights='[^\n]*' is no readable file of weights [^\n]*: give [^\n]*$"):
            ResNet18(weights=tmp_path / name)


def test_imagenet_weights_come_from_the_hub_cache(torchvision_state, tmp_path, monkeypatch) -> None:
    path, network = torchvision_state
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    cached = tmp_path / "hub/checkpoints/resnet18-f37072fd.pth"
    cached.parent.mkdir(parents=True)
    cached.symlink_to(path)
    model = ResNet18(num_classes=3, weights="imagenet")
    assert torch.equal(model.body.conv1.weight, network.conv1.weight)

    cached.unlink()
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # where nobody answers
    with pytest.raises(
        ValueError, match=r"could not be downloaded .*Connection refused.* copy https://.*/resnet18-f37072fd.pth into"
    ):
        ResNet18(weights="imagenet")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SimpleCNN(in_channels=0), "in_channels must be at least 1; got 0"),
        (lambda: SimpleCNN(image_size=15), "what the layers leave of image_size 15 must be at least 1; got 0: choose a larger"),
        (lambda: LeNet(channels=()), "channels must be one or more numbers of at least 1; got \\(\\)"),
        (lambda: ResNet18(stem="5x5"), "stem must be 7x7 or 3x3; got '5x5'"),  # type: ignore[arg-type]
        (lambda: PflCNN(image_size=5), "image_size must be at least 6"),
        (lambda: SimpleCNN()(torch.zeros(2, 1, 28, 28)), "SimpleCNN takes inputs of shape \\(3, 32, 32\\), got \\(1, 28, 28\\)"),
        (lambda: ResNet18()(torch.zeros(2, 1, 32, 32)), "ResNet18 takes .* set in_channels to the data's"),
        (lambda: SoftmaxRegression()(torch.zeros(2, 9)), "SoftmaxRegression takes .* \\(784,\\), got \\(9,\\): set in_features"),
    ],
)
def test_bad_input_is_one_clear_line(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_yaml_arguments() -> None:
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--model", type=FeatureModel)
    config = parser.parse_string(
        "model: {class_path: flcog.models.LeNet, init_args: {channels: [2, 3], hidden: [5], image_size: 20}}"
    )
    model = instantiated(parser, config).model
    assert isinstance(model, LeNet) and model.num_features == 5
    with pytest.raises(jsonargparse.ArgumentError):
        parser.parse_string("model: {class_path: flcog.models.ResNet18, init_args: {stem: 5x5}}")


def test_dropout_under_vmap() -> None:
    template, keys, x = Dropout(0.4), torch.tensor([0, 3, -9]), torch.randn(3, 6, 7)

    def twice(key: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        buffers = {"dropout_key": key.clone()}
        first = functional_call(template, buffers, (x,))
        return first, functional_call(template, buffers, (x,)), buffers["dropout_key"]

    firsts, seconds, moved = vmap(twice)(keys, x)
    assert torch.equal(moved, keys + 2)
    for k, key in enumerate(keys):
        single = Dropout(0.4)
        single.dropout_key.copy_(key)
        assert torch.equal(single(x[k]), firsts[k])
        assert torch.equal(single(x[k]), seconds[k])
