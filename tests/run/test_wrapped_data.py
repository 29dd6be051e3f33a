"""``fit`` on a torch data set, a loader or a plain LightningDataModule equals a run on flcog's data module with all settings."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from datamodules.test_torch_dataset import FEATURES, LABELS, module, pad
from harness import distance, make_trainer
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from flcog.datamodules import ArrayData, Dirichlet, LightningData
from flcog.datamodules.loaders import federated

TENSORS = TensorDataset(torch.from_numpy(FEATURES), torch.from_numpy(LABELS))
TESTS = TensorDataset(torch.from_numpy(FEATURES[:9]), torch.from_numpy(LABELS[:9]))


class Plain(L.LightningDataModule):
    """A data module as Lightning's users write it."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.called: list[str] = []
        self.options = options

    def prepare_data(self) -> None:
        self.called.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.called.append(stage)

    def train_dataloader(self) -> Any:
        return DataLoader(TENSORS, **{"batch_size": 16, "shuffle": True, **self.options})

    def test_dataloader(self) -> Any:
        return [DataLoader(TESTS, batch_size=20)]


def arrays(**options: Any) -> ArrayData:
    return ArrayData(train_inputs=FEATURES, train_targets=LABELS, **options)


def fitted(tmp_path: Path, data: Any) -> Any:
    trainer = make_trainer(tmp_path, rounds=2, local_steps=2, precision="32-true", eval_every=1)
    trainer.fit(module(), data)
    return trainer


@pytest.mark.parametrize("option", ["batch_size", "eval_batch_size", "drop_last", "num_workers"])
def test_options_of_the_loaders_are_none_of_the_data_module(option: str) -> None:
    with pytest.raises(TypeError, match=f"got multiple values for .*{option}"):
        LightningData(Plain(), **{option: 1})


def test_a_data_set(tmp_path: Path) -> None:
    trainer = fitted(tmp_path, TENSORS)
    assert distance(trainer.state, fitted(tmp_path, arrays()).state) == 0
    note = next(note for note in trainer.notes if "divided" in note)
    assert "a TensorDataset is divided over 10 clients at random, in batches of 64; no test set: flcog" in note


def test_a_loader(tmp_path: Path) -> None:
    trainer = fitted(tmp_path, DataLoader(TENSORS, batch_size=7, drop_last=True, shuffle=True))
    assert distance(trainer.state, fitted(tmp_path, arrays(batch_size=7, drop_last=True)).state) == 0
    assert any(
        "a DataLoader is divided over 10 clients at random, in batches of 7; no test set" in note for note in trainer.notes
    )


def test_a_lightning_data_module(tmp_path: Path) -> None:
    data = Plain()
    trainer = fitted(tmp_path, data)
    expected = fitted(tmp_path, arrays(batch_size=16, test_inputs=FEATURES[:9], test_targets=LABELS[:9]))
    assert distance(trainer.state, expected.state) == 0 and data.called == ["prepare_data", "fit", "test"]
    assert trainer.history[-1]["test/accuracy"] == expected.history[-1]["test/accuracy"]
    figures = [trainer.test(module(), part) for part in (Plain(), arrays(test_inputs=FEATURES[:9], test_targets=LABELS[:9]))]
    assert figures[0] == figures[1]
    note = next(note for note in trainer.notes if "divided" in note)
    assert "a Plain is divided over 10 clients at random, in batches of 16: " in note


def test_a_collate_fn_and_a_sampler_are_used() -> None:
    options = {"shuffle": False, "sampler": WeightedRandomSampler([1.0] * 60, 60), "collate_fn": pad}
    wrapped = federated(Plain(**options))
    assert wrapped.federation.num_clients == 10 and wrapped.collate_fn is pad  # type: ignore[attr-defined]
    assert wrapped.federation.order is not None and "not used" not in wrapped.notes[0]


def at(batch: Any) -> Any:
    """Return a batch whose inputs are all 100."""
    inputs, targets = default_collate(batch)
    return inputs * 0 + 100, targets


class Means(L.LightningModule):
    """Logs the mean input and the number of samples of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.log("mean", batch[0].mean())
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_mean", batch[0].mean())
        self.log("val_count", float(len(batch[0])))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("part", ["train", "val"])
def test_each_loader_has_its_own_collate_fn(part: str, tmp_path: Path) -> None:
    loaders = [DataLoader(TENSORS, batch_size=6, collate_fn=at if part == name else None) for name in ("train", "val")]
    trainer = make_trainer(tmp_path, rounds=1, local_steps=1, eval_every=1, precision="32-true")
    trainer.fit(Means(), *loaders)
    means = {name: trainer.history[0][f"{name}/mean"] for name in ("train", "val")}
    assert means.pop(part) == 100 and abs(next(iter(means.values()))) < 2


def test_a_sampler_of_a_subset_chooses_the_samples(tmp_path: Path) -> None:
    train = DataLoader(TENSORS, batch_size=6, sampler=SubsetRandomSampler(range(20, 60)))
    val = DataLoader(TENSORS, batch_size=5, sampler=SubsetRandomSampler([3, 1, *range(4, 20)]))
    trainer = make_trainer(tmp_path, rounds=1, local_steps=1, eval_every=1, precision="32-true")
    trainer.fit(Means(), train, val)
    data = trainer.federation
    assert torch.equal(data.train.inputs, TENSORS.tensors[0][20:]) and torch.equal(data.train.targets, TENSORS.tensors[1][20:])
    rows = [3, 1, *range(4, 20)]
    assert torch.equal(data.val.inputs, TENSORS.tensors[0][rows]) and torch.equal(data.val.targets, TENSORS.tensors[1][rows])
    assert trainer.history[0]["val/mean"] == pytest.approx(float(TENSORS.tensors[0][rows].mean()), abs=1e-6)
    assert trainer.history[0]["val/count"] == pytest.approx((3 * 5 * 5 + 3 * 3) / 18) and not any(
        "is not used" in note for note in trainer.notes
    )


def test_batch_samplers_are_used() -> None:
    weights = WeightedRandomSampler([1.0] * 60, 60)
    wrapped = federated(DataLoader(TENSORS, batch_sampler=BatchSampler(weights, 16, drop_last=True)))
    assert wrapped.federation.order is not None and wrapped.batch_size == wrapped.eval_batch_size == 16 and wrapped.drop_last
    assert federated(DataLoader(TENSORS, sampler=RandomSampler(TENSORS, num_samples=9))).federation.order is not None
    assert federated(DataLoader(TENSORS, shuffle=True)).federation.order is None


def test_a_lightning_data_module_divided_otherwise() -> None:
    owners = LightningData(Plain(), users=[f"{item % 4}" for item in range(60)])
    assert owners.federation.num_clients == 4 and owners.notes == ("a Plain is divided by Natural, in batches of 16",)
    skewed = LightningData(Plain(), num_clients=3, partitioner=Dirichlet(0.5), partition_seed=1).federation
    assert skewed.partition.hash == arrays(num_clients=3, partitioner=Dirichlet(0.5), partition_seed=1).federation.partition.hash


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter([])


class NoTraining(L.LightningDataModule):
    pass


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (Stream(), "train is a Stream, a stream, whose samples have no clients"),
        (DataLoader(TENSORS, batch_size=None), "Classifier learns from pairs .*, or give a LightningModule whose training_step"),
        (NoTraining(), "NoTraining has no train_dataloader: write one"),
        ((FEATURES, LABELS), r"data is a tuple: give .* \(flcog.datamodules has ArrayData for arrays"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_wrapped(data: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        make_trainer(None).prepare(module(), data)
