"""``init_from`` begins a run with the weights of a Lightning checkpoint."""

import pickle
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from datamodules.common import one_line
from engine.test_lightning_hooks import Plain
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, assert_close, fit, make_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flcog
from flcog.models import MLP


class Kept(Plain):
    """A module with hyper-parameters and a scheduler, which its checkpoints contain, too."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = MLP(NUM_FEATURES, (width,), NUM_CLASSES)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of ``lightning.Trainer``."""
    folder = tmp_path_factory.mktemp("lightning")
    trainer = L.Trainer(
        max_epochs=1,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    data = TensorDataset(torch.randn(8, NUM_FEATURES), torch.arange(8) % NUM_CLASSES)
    trainer.fit(Kept(), DataLoader(data, batch_size=4))
    (path,) = folder.rglob("*.ckpt")
    return path


def weights_of(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)["state_dict"]  # type: ignore[no-any-return]


def begun(model: nn.Module, path: Any, tmp_path: Path) -> Any:
    """The initial weights of a run, whose clients do not change them."""
    trainer = make_trainer(tmp_path, rounds=1, local_steps=1, precision="32-true")
    if isinstance(model, flcog.ClientModule):
        model.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.0)
    trainer.fit(model, TinyData(), init_from=str(path))
    return trainer.params


class Still(Kept):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def test_the_run_begins_with_the_checkpoints_weights(checkpoint: Path, tmp_path: Path) -> None:
    assert_close(begun(Still(), checkpoint, tmp_path), weights_of(checkpoint), 0)


def test_networks_and_client_modules_find_their_weights(checkpoint: Path, tmp_path: Path) -> None:
    """A file of a bare network fits a client module, and the reverse."""
    network = MLP(NUM_FEATURES, (8,), NUM_CLASSES)
    torch.save(network.state_dict(), tmp_path / "network.pt")
    client = flcog.Classifier(MLP(NUM_FEATURES, (8,), NUM_CLASSES))
    expected = {f"model.{name}": value for name, value in network.state_dict().items()}
    assert_close(begun(client, tmp_path / "network.pt", tmp_path), expected, 0)
    torch.save({"state_dict": expected}, tmp_path / "client.ckpt")
    bare = MLP(NUM_FEATURES, (8,), NUM_CLASSES)
    make_trainer(tmp_path / "bare", rounds=1, local_steps=1, precision="32-true").fit(
        bare, TinyData(), init_from=str(tmp_path / "client.ckpt")
    )


def test_flcogs_own_checkpoints_are_weights_too(tmp_path: Path) -> None:
    first = fit(tmp_path / "first", module=Kept(), rounds=1, precision="32-true")
    last = Path(first.run_dir) / "checkpoints" / "last.ckpt"
    assert_close(begun(Still(), last, tmp_path / "second"), weights_of(last), 0)


class Attack:
    def __reduce__(self) -> Any:
        return (print, ("code ran",))


def test_what_does_not_fit_is_refused(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"{name}.ckpt" for name in ("text", "attack", "empty", "numbers")}
    files["text"].write_text("no checkpoint")
    files["attack"].write_bytes(pickle.dumps({"state_dict": Attack()}))
    torch.save({"state_dict": {}}, files["empty"])
    torch.save({"state_dict": {"w": 3}}, files["numbers"])
    for path, message in (
        (tmp_path / "none.ckpt", "none.ckpt is no file: give a checkpoint of Lightning's"),
        (files["text"], "cannot be read as tensors, numbers and text"),
        (files["attack"], "cannot be read as tensors, numbers and text"),
        (files["empty"], "contains no weights"),
        (files["numbers"], "contains no weights"),
    ):
        with one_line(ValueError, message):
            begun(Still(), path, tmp_path)
    with one_line(ValueError, r"does not fit Still: net.hidden.0.weight has shape \[8, 6\] there and \[4, 6\] here"):
        begun(Still(width=4), checkpoint, tmp_path)
    with one_line(ValueError, "does not fit MLP: .* give weights of the same model"):
        begun(MLP(NUM_FEATURES, (8, 8), NUM_CLASSES), checkpoint, tmp_path)
    with one_line(ValueError, "init_from begins a new run, which neither resumes nor branches"):
        make_trainer(tmp_path).fit(Still(), TinyData(), "last", init_from=str(checkpoint))
    assert "code ran" not in capsys.readouterr().out
