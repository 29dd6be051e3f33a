"""Programs of other projects run unchanged: a FederatedTrainer in place of lightning.Trainer trains their modules on their data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from datamodules.test_mnist import write_mnist
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel, DemoModel
from lightning.pytorch.demos.mnist_datamodule import MNISTDataModule
from lightning.pytorch.demos.transformer import LightningTransformer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import flcog
from flcog.client.messages import ClientTask
from flcog.client.work import batches
from flcog.datamodules import Dirichlet, LightningData

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def rng(index: int) -> torch.Generator:
    return torch.Generator().manual_seed(index)


class Made(Dataset):
    """A data set that computes each item from its index."""

    def __init__(self, make: Callable[[int], Any], count: int) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Loaders(L.LightningDataModule):
    """A data module with the same set for training, validation and test."""

    def __init__(self, data: Dataset, batch_size: int = 4) -> None:
        super().__init__()
        self.data, self.batch_size = data, batch_size

    def train_dataloader(self) -> Any:
        return DataLoader(self.data, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.data, batch_size=self.batch_size)

    test_dataloader = val_dataloader


def trained(model: Any, data: Any, folder: Path, **options: Any) -> dict[str, float]:
    """Train, check that the training loss changes between the first two rounds, and return the last row of the history."""
    defaults: dict[str, Any] = {
        "rounds": 2,
        "local_steps": 2,
        "logger": False,
        "accelerator": "cpu",
        "enable_progress_bar": False,
    }
    torch.manual_seed(0)
    trainer = flcog.FederatedTrainer(default_root_dir=str(folder), **(defaults | options))
    trainer.fit(model, data)
    losses = [row["train/loss"] for row in trainer.history]
    assert np.isfinite(losses).all() and losses[0] != losses[1]
    return trainer.history[-1]


def needs(package: str) -> Any:
    """Import the package, or skip the test."""
    return pytest.importorskip(package, reason=f"{package} is of the group foreign: uv sync --group foreign")


def few(data: Any, **options: Any) -> LightningData:
    return LightningData(data if isinstance(data, L.LightningDataModule) else Loaders(data), num_clients=2, **options)


class Sgd(BoringModel):
    """BoringModel without its scheduler, which would change the learning rate between rounds."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Sentences(Made):
    """Sequences of word indices, with the next word at each position as the target."""

    def __init__(self) -> None:
        super().__init__(lambda index: self._pair(torch.randint(50, (13,), generator=rng(index))), 12)

    def _pair(self, words: Tensor) -> tuple[Tensor, Tensor]:
        return words[:-1], words[1:]


class Transformer(LightningTransformer):
    """Lightning's transformer without the download of a data set, which the test does not use."""

    def __init__(self) -> None:
        super().__init__(vocab_size=50)

    def prepare_data(self) -> None:
        pass


class Words(Transformer):
    """The transformer without dropout, because the two trainers draw dropout's random numbers differently."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
            if isinstance(layer, nn.MultiheadAttention):
                layer.dropout = 0.0


@pytest.mark.parametrize(
    ("kind", "data"), [(Sgd, BoringDataModule), (Words, Sentences)], ids=["BoringModel", "LightningTransformer"]
)
def test_one_client_equals_lightnings_trainer(kind: Any, data: Any, tmp_path: Path) -> None:
    """Lightning's trainer gets the batches that the client draws."""
    torch.manual_seed(0)
    first, own = kind(), data()
    second = kind()
    second.load_state_dict(first.state_dict())
    federation = LightningData(own if isinstance(own, L.LightningDataModule) else Loaders(own), num_clients=1)
    trainer = flcog.FederatedTrainer(rounds=1, local_steps=5, logger=False, accelerator="cpu", enable_progress_bar=False)
    trainer.prepare(first, federation)
    work = _work_of(trainer)
    seen = [batch.given for batch in batches(work, trainer.run.engine.clients.here.reader)]
    trainer.train_round()
    lightning = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    lightning.fit(second, DataLoader(seen, batch_size=None))  # type: ignore[arg-type]
    for name, value in trainer.run.params.items():
        assert torch.allclose(value, second.state_dict()[name], atol=1e-6), name
    assert len(seen) == 5


def _work_of(trainer: flcog.FederatedTrainer) -> Any:
    """The batches of the only client in round 1."""
    from flcog.client.work import make_work

    clients = trainer.run.engine.clients.here
    return make_work(clients.federation, clients.batching, [ClientTask(0, 5, 1.0)], trainer.settings.seed, 0)[0]


def test_lightnings_boring_and_demo_models(tmp_path: Path) -> None:
    for model in (BoringModel(), DemoModel()):
        trained(model, BoringDataModule(), tmp_path)


def test_lightnings_transformer(tmp_path: Path) -> None:
    trained(Transformer(), few(Sentences()), tmp_path)


def test_lightnings_mnist_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the data module looks for its files
    write_mnist(tmp_path / "data/MNIST/raw", train=48, test=12)

    class LitClassifier(L.LightningModule):
        """The module of Lightning's example of an image classifier."""

        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 16), nn.ReLU(), nn.Linear(16, 10))

        def forward(self, x: Tensor) -> Any:
            return self.backbone(x)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return nn.functional.cross_entropy(self(x), y)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            x, y = batch
            self.log("valid_loss", nn.functional.cross_entropy(self(x), y), on_step=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.001)

        def test_step(self, batch: Any, batch_idx: int) -> None:
            x, y = batch
            self.log("test_loss", nn.functional.cross_entropy(self(x), y))

    data = MNISTDataModule(val_split=8, num_workers=0, batch_size=4)
    row = trained(LitClassifier(), few(data, partitioner=Dirichlet(1.0)), tmp_path)
    assert "val/valid_loss" in row and "test/loss" in row


def image_and_label(index: int) -> dict[str, Any]:
    return {"image": torch.rand(3, 32, 32, generator=rng(index)), "label": torch.tensor(index % 3), "name": f"tile {index}"}


def test_a_classification_task_of_torchgeo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GDAL_CURL_CA_BUNDLE", "PROJ_CURL_CA_BUNDLE"):  # set by torchgeo's import; monkeypatch removes them again
        monkeypatch.setenv(name, "")
    trainers = needs("torchgeo.trainers")
    task = trainers.ClassificationTask(model="resnet18", in_channels=3, num_classes=3)
    row = trained(task, few(Made(image_and_label, 12), target="label", partitioner=Dirichlet(5.0)), tmp_path, local_steps=1)
    assert any(name.startswith("val/") for name in row) and any(name.startswith("train/") for name in row)


def test_a_model_of_pytorch_forecasting(tmp_path: Path) -> None:
    forecasting = needs("pytorch_forecasting")
    import pandas as pd

    times, groups = np.tile(np.arange(30), 4), np.repeat(list("abcd"), 30)
    table = pd.DataFrame({"time": times, "group": groups, "value": np.random.default_rng(0).normal(size=120) + 10})
    series = forecasting.TimeSeriesDataSet(
        table,
        time_idx="time",
        target="value",
        group_ids=["group"],
        max_encoder_length=8,
        max_prediction_length=3,
        time_varying_unknown_reals=["value"],
        time_varying_known_reals=["time"],
    )
    small = {"hidden_size": 4, "attention_head_size": 1, "hidden_continuous_size": 2}
    model, second = (
        forecasting.TemporalFusionTransformer.from_dataset(series, learning_rate=0.01, optimizer="adam", **small)
        for _ in range(2)
    )

    class Series(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            return series.to_dataloader(train=True, batch_size=8, num_workers=0)

        def val_dataloader(self) -> Any:
            return series.to_dataloader(train=False, batch_size=8, num_workers=0)

    row = trained(model, few(Series()), tmp_path)
    assert any(name.startswith("val/") for name in row)
    (last,) = tmp_path.rglob("last.ckpt")
    again = flcog.FederatedTrainer(rounds=3, local_steps=2, logger=False, accelerator="cpu", enable_progress_bar=False)
    again.fit(second, few(Series()), ckpt_path=str(last))
    assert len(again.history) == 3


def test_simclr_of_lightly(tmp_path: Path) -> None:
    loss = needs("lightly.loss")
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms import SimCLRTransform
    from PIL import Image

    class SimCLR(L.LightningModule):
        """The module of lightly's SimCLR example."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
            self.projection_head = SimCLRProjectionHead(8, 8, 8)
            self.criterion = loss.NTXentLoss()

        def forward(self, x: Tensor) -> Any:
            return self.projection_head(self.backbone(x).flatten(start_dim=1))

        def training_step(self, batch: Any, batch_index: int) -> Any:
            view0, view1 = batch[0]
            value = self.criterion(self(view0), self(view1))
            self.log("train_ssl", value)
            return value

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.06)

    transform = SimCLRTransform(input_size=32)

    def views(index: int) -> Any:
        pixels = np.random.default_rng(index).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        return transform(Image.fromarray(pixels)), index % 4, f"image {index}.png"

    row = trained(SimCLR(), few(Made(views, 16)), tmp_path)
    assert row["train/ssl"] == pytest.approx(row["train/loss"])


def test_optuna_prunes_a_run(tmp_path: Path) -> None:
    optuna = needs("optuna")
    integration = needs("optuna_integration")

    class Always(optuna.pruners.BasePruner):  # type: ignore[misc,name-defined]
        def prune(self, study: Any, trial: Any) -> bool:
            return True

    class Measured(BoringModel):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("val_loss", self.step(batch))

    def objective(trial: Any) -> float:
        prune = integration.PyTorchLightningPruningCallback(trial, monitor="val_loss")
        return trained(Measured(), BoringDataModule(), tmp_path, callbacks=[prune])["val/loss"]

    study = optuna.create_study(pruner=Always())
    study.optimize(objective, n_trials=1)
    assert [trial.state for trial in study.trials] == [optuna.trial.TrialState.PRUNED]
