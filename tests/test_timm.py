"""timm's networks compute the same as in timm, load weights from files, and train equally in both executors."""

from pathlib import Path

import pytest
import torch
from harness import SGD, TinyData, assert_close, train
from torch import nn

import flcog
from flcog.callbacks import MOON, FedDecorr
from flcog.models import Timm
from flcog.models.base import Dropout

pytestmark = pytest.mark.slow
timm = pytest.importorskip("timm")

SMALL = {"img_size": 16, "patch_size": 8, "depth": 1, "embed_dim": 12, "num_heads": 2, "drop_rate": 0.1}
VIT = {"name": "vit_tiny_patch16_224", "options": SMALL}
RESNET = {"name": "resnet10t", "num_classes": 3}


class Pictures(TinyData):
    """The rows of the tiny data set as images."""

    def load(self) -> flcog.Splits:
        return flcog.Splits(*(self._drawn(part) for part in (super().load().train, super().load().test)))

    def _drawn(self, samples: flcog.Samples) -> flcog.Samples:
        rows = samples.inputs[:, :3].reshape(-1, 1, 1, 3) * torch.linspace(-1, 1, 16 * 16).reshape(1, 16, 16, 1)
        return flcog.Samples(rows, samples.targets)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet10t", {}),
        ("vit_tiny_patch16_224", SMALL),
        ("mobilenetv3_small_050", {}),
        ("deit_tiny_distilled_patch16_224", SMALL | {"drop_rate": 0.0}),
    ],
)
def test_features_and_head(name: str, options: dict[str, object]) -> None:
    network, images = Timm(name, 3, options=options).eval(), torch.randn(2, 3, 16, 16)
    assert network.features(images).shape == (2, network.num_features)
    assert network(images).shape == (2, 3)
    torch.testing.assert_close(network(images), network.head(network.features(images)))
    assert not any(type(layer) is nn.Dropout and layer.p for layer in network.modules())


def test_keywords_of_timm_are_given_directly() -> None:
    written = {f"{name}.shape": value.shape for name, value in Timm(VIT["name"], options=SMALL).named_parameters()}  # type: ignore[arg-type]
    assert written == {f"{name}.shape": value.shape for name, value in Timm(VIT["name"], **SMALL).named_parameters()}  # type: ignore[arg-type]


def test_it_computes_what_timm_does(tmp_path: Path) -> None:
    theirs, images = timm.create_model("resnet10t", num_classes=5).eval(), torch.randn(2, 3, 32, 32)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    ours = Timm("resnet10t", 5, weights=tmp_path / "weights.pth").eval()
    torch.testing.assert_close(ours(images), theirs(images))
    other = Timm("resnet10t", 3, weights=tmp_path / "weights.pth").eval()
    torch.testing.assert_close(other.features(images), ours.features(images))
    assert other(images).shape == (2, 3)
    grey = Timm("resnet10t", 5, weights=tmp_path / "weights.pth", in_channels=1).eval()
    torch.testing.assert_close(
        grey.features(images[:, :1]), ours.features(images[:, :1].repeat(1, 3, 1, 1)), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("model", [RESNET, VIT | {"num_classes": 3}], ids=lambda model: model["name"])
def test_both_executors_train_it(model: dict[str, object]) -> None:
    options = {"rounds": 1, "local_steps": 2, "clients_per_round": 3, "data": Pictures()}
    runs = [
        train(
            MOON(projection=4),
            FedDecorr(),
            module=flcog.Classifier(torch.manual_seed(0) and Timm(**model), SGD),
            **options,
            **how,
        )
        for how in ({"executor": "loop"}, {"chunk_size": 2}, {"executor": "vmap"})
    ]
    assert [run.executor.name for run in runs] == ["loop", "loop", "vmap"] and runs[1].executor.clients_at_once == 2
    assert_close(runs[1].state, runs[0].state, 0)
    assert_close(runs[2].state, runs[0].state, 1e-9)


def test_what_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.pth").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"^Timm: weights='.*bad.pth' is no readable file of weights \(.*\): give a"):
        Timm("resnet18", weights=tmp_path / "bad.pth")
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: (_ for _ in ()).throw(OSError("no route to host")))
    with pytest.raises(
        ValueError, match=r"^Timm: the pretrained weights of resnet18 are neither .* \(no route to host\): give a file"
    ):
        Timm("resnet18", pretrained=True)


def test_dropout_is_ours() -> None:
    network = Timm(**VIT)
    assert any(isinstance(layer, Dropout) and layer.p == 0.1 for layer in network.modules())
    images = torch.randn(2, 3, 16, 16)
    state = torch.get_rng_state()
    network.train()(images)
    assert torch.equal(torch.get_rng_state(), state)
