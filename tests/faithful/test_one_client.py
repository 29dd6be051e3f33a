"""One client in one round equals one epoch of ``lightning.Trainer`` on the same batches, to the last bit."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from harness import assert_close, distance
from lightning.pytorch import callbacks as lightnings
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, IterableDataset, Sampler, WeightedRandomSampler, default_collate

from faithful.modules import Gan
from faithful.side_by_side import Lit, Loaders, by_flcog, by_lightning, loader, points
from flcog.core.global_streams import seeded
from flcog.core.randomness import fold
from flcog.datamodules import LightningData

# Modules ------------------------------------------------------------------------------------------------------------------------------


class Boring(BoringModel):
    def on_train_batch_end(self, *args: Any) -> None:
        pass


class OwnHooks(Lit):
    """A warm-up by hand, a scaled backward pass, and gradients that the module clips."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, (self.trainer.global_step + 1) / 4)
        optimizer.step(closure=optimizer_closure)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        (2 * loss).backward()  # type: ignore[no-untyped-call]

    def configure_gradient_clipping(self, optimizer: Any, *options: Any, **named: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.2 if self.global_step % 2 else 0.5, gradient_clip_algorithm="norm")


class AsksAgain(Lit):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class TwoSchedulers(Lit):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        steps, epochs = (torch.optim.lr_scheduler.ExponentialLR(optimizer, rate) for rate in (0.8, 0.5))
        return [optimizer], [{"scheduler": steps, "interval": "step", "frequency": 2}, epochs]


class Plateau(Lit):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "monitor": "train_loss", "frequency": 2},
        }


class Estimates(Lit):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        steps = int(self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, steps), "interval": "step"}]


class Transfers(Lit):
    """A pretrained part, which a callback freezes and thaws, and no BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.net[1] = nn.LayerNorm(8)
        self.backbone = nn.Linear(6, 6)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step((self.backbone(batch[0]), batch[1]), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step((self.backbone(batch[0]), batch[1]), batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([value for value in self.parameters() if value.requires_grad], lr=0.1, momentum=0.9)


class Seldom(Lit):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx in (0, 3) else super().training_step(batch, batch_idx)


class Unused(Lit):
    """A layer without a gradient, which weight decay leaves as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.1, weight_decay=0.5)


MODULES: dict[str, tuple[type[L.LightningModule], dict[str, Any]]] = {
    "BatchNorm and Dropout": (Lit, {}),
    "GAN": (Gan, {}),
    "own hooks": (OwnHooks, {}),
    "LBFGS": (AsksAgain, {}),
    "two schedulers": (TwoSchedulers, {}),
    "ReduceLROnPlateau": (Plateau, {}),
    "OneCycleLR": (Estimates, {}),
    "None": (Seldom, {}),
    "unused": (Unused, {}),
    "accumulation": (Lit, {"accumulate_grad_batches": 3}),
    "clipped norm": (Lit, {"gradient_clip_val": 0.1}),
    "clipped values": (
        TwoSchedulers,
        {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value", "accumulate_grad_batches": 2},
    ),
    "bf16-mixed": (Lit, {"precision": "bf16-mixed"}),
    "bf16-true": (Lit, {"precision": "bf16-true"}),
    "64-true": (OwnHooks, {"precision": "64-true"}),
    "64": (Lit, {"precision": 64}),
    "32": (Lit, {"precision": 32}),
    "16-mixed": (Lit, {"precision": "16-mixed", "accelerator": "cuda"}),
    "16-mixed, clipped": (Lit, {"precision": "16-mixed", "accelerator": "cuda", "gradient_clip_val": 0.1}),
}


def assert_same_bits(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    gaps = {name: float((value.double() - theirs[name].double()).abs().max()) for name, value in ours.items()}
    assert not any(gaps.values()), gaps
    assert any(value.any() for value in theirs.values()), "nothing has been trained"


@pytest.mark.parametrize("case", MODULES)
def test_modules(case: str, tmp_path: Path) -> None:
    kind, options = MODULES[case]
    if options.get("accelerator") == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    trainer, _, ours = by_flcog(tmp_path, kind, LightningData(Loaders(loader()), num_clients=1), **options)
    _, _, theirs = by_lightning(kind, loader(), **options)
    assert trainer.executor.name == "lightning" and "train/loss" in trainer.history[0]
    assert_same_bits(ours, theirs)


class Fails(Lit):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 3:
            raise FloatingPointError
        return super().training_step(batch, batch_idx)


def test_an_error_names_the_step(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError) as error:
        by_flcog(tmp_path, Fails, LightningData(Loaders(loader()), num_clients=1))
    assert "in client 0, round 1, local step 4 of " in str(error.value.__notes__)


@pytest.mark.parametrize("case", [case for case, (_, options) in MODULES.items() if "accelerator" not in options])
def test_other_rates_are_seen(case: str) -> None:
    """The comparison above would see a learning rate that is one percent higher."""
    kind, options = MODULES[case]

    class Faster(L.Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            for group in trainer.optimizers[0].param_groups:
                group["lr"] *= 1.01

    (_, _, exact), (_, _, faster) = (by_lightning(kind, loader(), callbacks=given, **options) for given in ([], [Faster()]))
    assert any(not torch.equal(value, faster[name]) for name, value in exact.items()) or kind is OwnHooks


# Data ---------------------------------------------------------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(points(60))


class Batches(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(loader())


class Fives(Sampler):
    """Own batches of five points."""

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[list[int]]:
        return (part.tolist() for part in torch.randperm(60).split(5))


@dataclasses.dataclass
class Both:
    """A batch as a class of its own."""

    inputs: Tensor
    targets: Tensor


class Unpacks(Lit):
    """Takes batches of several kinds."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if isinstance(batch, Both):
            batch = (batch.inputs, batch.targets)
        elif "a" in batch:
            return sum(super(Unpacks, self).training_step(part, batch_idx) for part in batch.values() if part is not None)
        elif "inputs" in batch:
            batch = (batch["inputs"], batch["targets"])
        return super().training_step(batch, batch_idx)


class WithoutDropout(Unpacks):
    """A loader that begins anew within an epoch draws a number."""

    def __init__(self) -> None:
        super().__init__()
        self.net[3] = nn.Identity()


class Sequences(L.LightningModule):
    """A recurrent network on packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.GRU(1, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        packed, targets = batch
        return nn.functional.cross_entropy(self.net(packed)[1][0], targets)

    def on_train_batch_end(self, *args: Any) -> None:
        pass

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def packed(items: list[Any]) -> Any:
    inputs, targets = zip(*items, strict=True)
    parts = [values[: 1 + int(target), None] for values, target in zip(inputs, targets, strict=True)]
    return pack_sequence(parts, enforce_sorted=False), torch.stack(targets)


def mixed(items: list[Any]) -> Any:
    inputs, targets = default_collate(items)
    soft, share = nn.functional.one_hot(targets, 3).float(), 0.7
    return share * inputs + (1 - share) * inputs.flip(0), share * soft + (1 - share) * soft.flip(0)


def boring() -> DataLoader:
    torch.manual_seed(0)
    return DataLoader(RandomDataset(32, 60), batch_size=8)


def two() -> dict[str, Any]:
    return {"a": loader(60), "b": loader(30)}


DATA: dict[str, tuple[type[L.LightningModule], Callable[[], Any]]] = {
    "boring": (Boring, boring),
    "in order": (Lit, lambda: loader()),
    "drop_last": (Lit, lambda: loader(drop_last=True)),
    "weighted": (Lit, lambda: loader(sampler=WeightedRandomSampler(torch.arange(60.0).tolist(), 60))),
    "own batches": (Lit, lambda: DataLoader(points(60), batch_sampler=Fives())),
    "iterable": (Lit, lambda: DataLoader(Stream(), batch_size=8)),
    "iterable batches": (Lit, lambda: DataLoader(Batches(), batch_size=None)),
    "dict": (
        Unpacks,
        lambda: loader(collate_fn=lambda items: dict(zip(("inputs", "targets"), default_collate(items), strict=True))),
    ),
    "own class": (Unpacks, lambda: loader(collate_fn=lambda items: Both(*default_collate(items)))),
    "mixup": (Lit, lambda: loader(collate_fn=mixed)),
    "packed": (Sequences, lambda: loader(collate_fn=packed)),
    "loaders": (WithoutDropout, two),
    "min_size": (Unpacks, lambda: CombinedLoader(two(), "min_size")),
    "max_size": (Unpacks, lambda: CombinedLoader(two(), "max_size")),
}


@pytest.mark.parametrize("case", DATA)
def test_data(case: str, tmp_path: Path) -> None:
    kind, make = DATA[case]
    trainer, _, ours = by_flcog(tmp_path, kind, LightningData(Loaders(make()), num_clients=1), eval_every=0)
    theirs = make()
    if case in ("weighted", "own batches"):  # a pass has a seed of its own
        with seeded(fold(0, 0, "pass", 0) >> 1):
            theirs = DataLoader(points(60), batch_sampler=list(theirs.batch_sampler))
    assert trainer.executor.name == "lightning"
    assert_same_bits(ours, by_lightning(kind, theirs)[2])


# Callbacks ----------------------------------------------------------------------------------------------------------------------------

CALLBACKS: dict[str, tuple[type[L.LightningModule], Callable[[], L.Callback]]] = {
    "EMA": (Lit, lambda: lightnings.EMAWeightAveraging(decay=0.9)),
    "SWA": (Transfers, lambda: lightnings.StochasticWeightAveraging(0.2, swa_epoch_start=1, annealing_epochs=1)),
    "finetuning": (Transfers, lambda: lightnings.BackboneFinetuning(1, lambda epoch: 2.0, 0.1, verbose=False)),
    "accumulation": (Lit, lambda: lightnings.GradientAccumulationScheduler({0: 2, 1: 3})),
}


@pytest.mark.parametrize("case", CALLBACKS)
def test_callbacks(case: str, tmp_path: Path) -> None:
    """The trained weights differ by the rounding of the change that the client sends."""
    kind, make = CALLBACKS[case]
    given: dict[str, Any] = {"rounds": 3, "keep_optimizers": True, "eval_every": 0}
    data = LightningData(Loaders(loader()), num_clients=1)
    trainer, module, _ = by_flcog(tmp_path, kind, data, callbacks=[make()], **given)
    _, same, _ = by_lightning(kind, loader(), callbacks=[make()], max_epochs=3)
    _, without, _ = by_lightning(kind, loader(), max_epochs=3)
    assert trainer.executor.name == "lightning"
    assert_close(module.state_dict(), same.state_dict(), 1e-6)
    assert distance(same.state_dict(), without.state_dict()) > 1e-3
