"""``init_from`` begins a run with the weights of a Lightning checkpoint."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from datamodules.common import one_line
from faithful.modules import Plain
from harness import NUM_CLASSES, NUM_FEATURES, ROOT, TinyData, assert_close, fit, make_trainer, without_times
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flcog
from flcog import SavedRun
from flcog.commands.cli import main
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
    files = {name: tmp_path / f"{name}.ckpt" for name in ("attack", "empty")}
    files["attack"].write_bytes(pickle.dumps({"state_dict": Attack()}))
    torch.save({"state_dict": {}}, files["empty"])
    for path, message in (
        (tmp_path / "none.ckpt", "none.ckpt is no file: give a checkpoint of Lightning's"),
        (files["attack"], "cannot be read as tensors, numbers and text"),
        (files["empty"], "contains no weights"),
    ):
        with one_line(ValueError, message):
            begun(Still(), path, tmp_path)
    with one_line(ValueError, r"does not fit Still: size mismatch for net.hidden.0.weight: .*\[8, 6\].*\[4, 6\]"):
        begun(Still(width=4), checkpoint, tmp_path)
    with one_line(ValueError, "does not fit MLP: .* give weights of the same model"):
        begun(MLP(NUM_FEATURES, (8, 8), NUM_CLASSES), checkpoint, tmp_path)
    assert "code ran" not in capsys.readouterr().out


def begin(root: Path, rounds: int, init_from: Path | None = None, **options: Any) -> Any:
    trainer = make_trainer(root, rounds=rounds)
    trainer.fit(Kept(), TinyData(), init_from=None if init_from is None else str(init_from), **options)
    return trainer


def test_the_weights_are_a_part_of_the_experiment(checkpoint: Path, tmp_path: Path) -> None:
    torch.save({name: value + 1 for name, value in weights_of(checkpoint).items()}, tmp_path / "other.pt")
    files = (None, checkpoint, checkpoint, tmp_path / "other.pt")
    records = [SavedRun(begin(tmp_path / str(i), 1, file).run_dir).description for i, file in enumerate(files)]
    none, first, same, other = (record["experiment"] for record in records)
    assert first == same and len({none, first, other}) == 3
    assert records[1]["init_from"] == str(checkpoint) and "init_from" not in records[0]


def test_a_resumed_run_keeps_its_first_weights(checkpoint: Path, tmp_path: Path) -> None:
    whole = begin(tmp_path / "whole", 3, checkpoint)
    own = tmp_path / "own.ckpt"
    shutil.copy(checkpoint, own)
    run = begin(tmp_path / "cut", 1, own).run_dir
    with one_line(ValueError, "by a run whose init_from was .*own.ckpt, and now it is .*last.ckpt: give the same"):
        begin(tmp_path / "cut", 2, run / "checkpoints/last.ckpt", ckpt_path=str(run))
    for other in (None, run / "checkpoints/last.ckpt"):
        with one_line(ValueError, "ckpt_path=auto: .*, init_from was .*own.ckpt, is"):
            begin(tmp_path / "cut", 2, other, ckpt_path="auto")
    begin(tmp_path / "cut", 2, own, ckpt_path="auto")
    own.unlink()
    begin(tmp_path / "cut", 3, own, ckpt_path=str(run))  # as the run's config.yaml says
    resumed = begin(tmp_path / "cut", 3, ckpt_path=str(run))
    assert without_times(resumed.history) == without_times(whole.history)
    assert SavedRun(run).description["init_from"] == str(own)


@pytest.mark.usefixtures("command_line")
def test_a_runs_config_repeats_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["fit", "-c", str(ROOT / "configs/quickstart.yaml"), "--trainer.rounds", "1", "--trainer.logger", "false"]
    start += ["--trainer.local_steps", "1", "--trainer.clients_per_round", "2"]
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    main([*start, "--trainer.default_root_dir", str(first)])
    last = str(SavedRun(*first.iterdir()).directory / "checkpoints/last.ckpt")
    main([*start, "--trainer.default_root_dir", str(second), "--init_from", last])
    config = str(SavedRun(*second.iterdir()).directory / "config.yaml")
    assert f"from {last}" in " ".join(capsys.readouterr().out.split())
    main(["fit", "-c", config, "--trainer.default_root_dir", str(third)])
    rows = [without_times(SavedRun(*root.iterdir()).rows) for root in (first, second, third)]
    assert rows[1] == rows[2] != rows[0]
    main(["test", "-c", config, "--ckpt_path", config.replace("config.yaml", "checkpoints/last.ckpt")])
    resumed = [*start, "--trainer.rounds", "2", "--trainer.default_root_dir", str(third)]
    main([*resumed, "--ckpt_path", str(*third.iterdir())])
    config = str(SavedRun(*third.iterdir()).directory / "config.yaml")
    assert SavedRun(Path(config).parent).config["init_from"] == last
