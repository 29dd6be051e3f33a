"""Checkpoints open in Lightning, and a run that ends between two rounds goes on with the same bits, under both contracts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from harness import assert_close, distance, make_trainer, without_times
from lightning.pytorch import callbacks as lightnings
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from faithful.modules import Gan, Plain
from faithful.side_by_side import QUIET, Lit, Loaders, loader
from faithful.test_callbacks import Transfers
from faithful.test_one_client import Plateau, TwoSchedulers
from flcog.datamodules import LightningData

OPTIONS: dict[str, Any] = {
    "rounds": 3,
    "clients_per_round": 2,
    "local_epochs": 1,
    "executor": "auto",
    "eval_every": 1,
    "precision": "32-true",
    "log_every_n_steps": 1,
    "enable_model_summary": False,
}


class Killed(L.Callback):
    """Ends the run at the beginning of its third round."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 2:
            raise KeyboardInterrupt


class Counts(L.Callback):
    """A callback with a state, which it logs."""

    def __init__(self) -> None:
        self.batches = 0

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        self.batches += 1
        module.log("batches", float(self.batches))

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]


class Epochs(Plain):
    """A pure module whose scheduler follows a figure."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class Adam(Lit):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)


Made = Callable[[], list[L.Callback]]
CASES: dict[str, tuple[type[L.LightningModule], Made, dict[str, Any]]] = {
    "pure": (Epochs, list, {}),
    "faithful": (Lit, list, {}),
    "schedulers": (TwoSchedulers, lambda: [lightnings.LearningRateMonitor("step")], {}),
    "plateau": (Plateau, list, {}),
    "kept Adam": (Adam, list, {"keep_optimizers": True}),
    "kept GAN": (Gan, list, {"keep_optimizers": True, "eval_every": 0}),
    "state": (Lit, lambda: [Counts(), lightnings.EarlyStopping("val_loss", patience=9)], {}),
    "files": (Lit, lambda: [lightnings.ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True)], {}),
    "finetuning": (Transfers, lambda: [lightnings.BackboneFinetuning(1, verbose=False)], {"keep_optimizers": True}),
    "EMA": (Lit, lambda: [lightnings.EMAWeightAveraging(decay=0.5)], {}),
    "SWA": (Transfers, lambda: [lightnings.StochasticWeightAveraging(0.2, swa_epoch_start=1)], {}),
    "accumulation": (Lit, lambda: [lightnings.GradientAccumulationScheduler({0: 1, 1: 2, 2: 3})], {}),
}


def data() -> LightningData:
    return LightningData(Loaders(loader(40, shuffle=True), loader(16)), num_clients=2)


def run(root: Path, case: str, *further: L.Callback, ckpt_path: str | None = None) -> Any:
    kind, callbacks, options = CASES[case]
    trainer = make_trainer(root, *callbacks(), *further, **OPTIONS | options)
    trainer.logger = CSVLogger(str(root / "csv"), version="one")
    torch.manual_seed(0)
    trainer.fit(kind(), data(), ckpt_path)
    return trainer


def logged(root: Path) -> list[str]:
    lines = (root / "csv/lightning_logs/one/metrics.csv").read_text().splitlines()
    header = lines[0].split(",")
    times = [name for name in header if name.startswith("time/")]
    kept = [dict(zip(header, line.split(","), strict=True)) for line in lines[1:]]
    return [str({name: value for name, value in row.items() if value and name not in times}) for row in kept]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_goes_on_with_the_same_bits(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = run(Path("whole"), case)
    with pytest.raises(KeyboardInterrupt):
        run(Path("killed"), case, Killed())
    resumed = run(Path("killed"), case, ckpt_path="last")
    assert (whole.executor.name == "lightning") == (case != "pure")
    assert_close(dict(resumed.model.state_dict()), dict(whole.model.state_dict()), 0)
    assert without_times(resumed.history) == without_times(whole.history) and len(whole.history) == 3
    assert resumed.lightning.global_step == whole.lightning.global_step > 0
    states = [[each.state_dict() for each in trainer.lightning.callbacks] for trainer in (resumed, whole)]
    assert str(states[0]).replace("killed", "") == str(states[1]).replace("whole", "") or case in ("files", "schedulers")
    if case == "files":
        scores = [[(Path(path).name, float(score)) for path, score in state["best_k_models"].items()] for (state,) in states]
        assert scores[0] == scores[1] and len(scores[0]) == 2


def test_optimisers_are_kept_only_if_the_user_asks(tmp_path: Path) -> None:
    """Two rounds of Adam with kept moments are two epochs of lightning.Trainer, and differ from those with fresh ones."""
    states = []
    for keeps in (True, False):
        trainer = make_trainer(tmp_path, **OPTIONS | {"rounds": 2, "clients_per_round": 1, "keep_optimizers": keeps})
        torch.manual_seed(0)
        trainer.fit(Adam(), LightningData(Loaders(loader(40), loader(16)), num_clients=1))
        states.append({name: value.double() for name, value in trainer.model.state_dict().items()})
    assert distance(*states) > 1e-2


@pytest.mark.parametrize("kind", [Epochs, Lit])
def test_lightning_opens_the_best_checkpoint(kind: Any, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, **OPTIONS)
    trainer.fit(kind(), data())
    best = trainer.run_dir / "checkpoints/best.ckpt"
    saved = torch.load(best, weights_only=True)
    assert_close(dict(kind.load_from_checkpoint(best).state_dict()), saved["state_dict"], 0)
    theirs = L.Trainer(**QUIET | {"max_epochs": 5})
    (figures,) = theirs.validate(kind(), loader(16), ckpt_path=str(best))
    assert figures["val_loss"] == pytest.approx(min(row["val/loss"] for row in trainer.history), rel=1e-5)
    theirs.fit(module := kind(), loader(40), loader(16), ckpt_path=str(best))
    assert theirs.current_epoch == 5
    assert distance(dict(module.state_dict()), saved["state_dict"]) > 1e-4
