"""The steps of a LightningModule receive batches of any structure as a DataLoader would return them. Targets are optional."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from harness import assert_close, fit, make_trainer
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

import flcog
from datamodules.common import one_line
from flcog.callbacks import FedDisco, FedProx
from flcog.datamodules import ArrayData, Dirichlet, LightningData, TorchDataset
from flcog.run.partition_report import partition_report

RNG = np.random.default_rng(0)
ROWS, LABELS = torch.from_numpy(RNG.normal(size=(24, 6)).astype(np.float32)), torch.from_numpy(RNG.integers(3, size=24))


class Graphs:
    """A batch that is no container, like PyTorch Geometric's batches: all nodes of several graphs in one tensor."""

    def __init__(self, rows: list[Tensor], numbers: list[int]) -> None:
        self.nodes = torch.cat([row[: 1 + number % 3] for row, number in zip(rows, numbers, strict=True)])
        self.number, self.device_calls = torch.tensor(numbers), 0

    def to(self, device: Any) -> "Graphs":
        self.device_calls += 1
        return self


class Items(Dataset):
    """A data set of items with a given structure, which contain their index."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return self.make(int(index))


KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Tensor], Any]] = {
    "inputs alone": (lambda i: ROWS[i] * 0 + i, lambda batch: batch[:, 0], None),
    "a triple with weights": (lambda i: (ROWS[i], int(LABELS[i]), float(i)), lambda batch: batch[2], None),
    "a dict": (lambda i: {"image": ROWS[i], "label": int(LABELS[i]), "number": i}, lambda batch: batch["number"], None),
    "a dict with text": (lambda i: {"x": ROWS[i], "name": f"row {i}", "n": i}, lambda batch: batch["n"], None),
    "a nested dict": (lambda i: {"x": {"a": ROWS[i], "b": (i, ROWS[i, :2])}}, lambda batch: batch["x"]["b"][0], None),
    "pairs of sequences": (lambda i: (torch.arange(3) + i, torch.arange(1, 4) + i), lambda batch: batch[0][:, 0], None),
    "one-hot rows": (lambda i: (ROWS[i] * 0 + i, torch.eye(3)[LABELS[i]]), lambda batch: batch[0][:, 0], None),
    "an image of bytes": (
        lambda i: (torch.full((1, 4, 4), i, dtype=torch.uint8), int(LABELS[i])),
        lambda batch: batch[0][:, 0, 0, 0],
        None,
    ),
    "a column that collate_fn makes": (
        lambda i: (ROWS[i] * 0 + i, int(LABELS[i])),
        lambda batch: batch[0][:, 0],
        lambda items: [torch.stack([row for row, _ in items]), torch.tensor([[float(label)] for _, label in items])],
    ),
    "graphs": (
        lambda i: (ROWS[i], i),
        lambda batch: batch.number,
        lambda items: Graphs([row for row, _ in items], [number for _, number in items]),
    ),
}


def packed(items: list[Any]) -> Any:
    return pack_sequence([row for row, _ in items]), torch.tensor([number for _, number in items])


class Named(dict[str, Any]):
    """A dict that torch's trees take for a leaf."""


def named(items: list[Any]) -> Any:
    numbers = torch.tensor([number for _, number in items])
    return [Named(row=torch.stack([row for row, _ in items])), numbers, numbers]


def with_gap(items: list[Any]) -> Any:
    return (torch.stack([row for row, _ in items]), None), torch.tensor([number for _, number in items])


KINDS["a pair of a PackedSequence"] = lambda i: (ROWS[i], i), lambda batch: batch[1], packed
KINDS["a triple of a dict of its own kind"] = lambda i: (ROWS[i], i), lambda batch: batch[1], named
KINDS["a pair with None"] = lambda i: (ROWS[i], i), lambda batch: batch[1], with_gap


class Records(L.LightningModule):
    """Records its batches."""

    def __init__(self, numbers: Callable[[Any], Tensor] = len) -> None:  # type: ignore[assignment]
        super().__init__()
        self.layer, self.numbers = nn.Linear(1, 1), numbers
        self.seen: dict[str, list[Any]] = {}

    def _step(self, kind: str, batch: Any) -> Tensor:
        self.seen.setdefault(kind, []).append(batch)
        return self.layer(self.numbers(batch).float()[:, None]).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self._step("train", batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self._step("val", batch), batch_size=len(self.numbers(batch)))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._step("test", batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def assert_same(batch: Any, expected: Any) -> None:
    """Check that all types, shapes and values are equal."""
    assert type(batch) is type(expected)
    if isinstance(batch, Graphs):
        assert batch.device_calls > 0
        batch, expected = [batch.nodes, batch.number], [expected.nodes, expected.number]
    if isinstance(batch, dict):
        assert list(batch) == list(expected)
        batch, expected = list(batch.values()), list(expected.values())
    if isinstance(batch, tuple | list):
        assert len(batch) == len(expected)
        for one, other in zip(batch, expected, strict=True):
            assert_same(one, other)
    elif isinstance(batch, Tensor):
        assert batch.dtype == expected.dtype and torch.equal(batch, expected)
    else:
        assert batch == expected


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_gets_what_a_data_loader_returns(kind: str) -> None:
    make, numbers, collate_fn = KINDS[kind]
    items, model = Items(make), Records(numbers)
    data = TorchDataset(items, items, items, collate_fn=collate_fn, num_clients=3, batch_size=4, eval_batch_size=9, num_workers=0)
    trainer = make_trainer(None, rounds=1, local_steps=2, precision="32-true", executor="loop", clients_per_round=1.0)
    trainer.prepare(model, data)
    model.seen.clear()
    trainer.train_round()
    figures = trainer.evaluate()
    trained = model.seen["train"]
    evaluated = {name: model.seen[name] for name in ("val", "test")}
    assert len(trained) == 6 and [len(evaluated[name]) for name in ("val", "test")] == [3, 3] and "val/loss" in figures
    for batch in [*trained, *evaluated["val"], *evaluated["test"]]:
        chosen = [items[int(number)] for number in numbers(batch)]
        pair = isinstance(batch, tuple) and not isinstance(batch[0], tuple)
        assert_same(list(batch) if pair else batch, (collate_fn or default_collate)(chosen))


class Weighted(L.LightningModule):
    """A classifier with weights for its samples, which come in triples or dicts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, labels, weights = (batch["x"], batch["y"], batch["w"]) if isinstance(batch, dict) else batch[:3]
        return (nn.functional.cross_entropy(self.layer(inputs), labels, reduction="none") * weights).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def triple(i: int) -> tuple[Tensor, int, float]:
    return ROWS[i], int(LABELS[i]), 1.0 + i


DICTS = Items(lambda i: dict(zip("xyw", triple(i), strict=True)))
TENSORS = TensorDataset(ROWS, LABELS, torch.arange(1.0, 25.0))


@pytest.mark.parametrize("data", [Items(triple), DICTS, TENSORS], ids=["triples", "dicts", "tensors"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_one_client_with_one_batch_is_gradient_descent(data: Any, executor: Any, tmp_path: Path) -> None:
    options = {"rounds": 2, "local_steps": 3, "executor": executor, "precision": "64-true", "clients_per_round": 1.0}
    whole = TorchDataset(data, num_clients=1, batch_size=24, num_workers=0)
    trainer = fit(tmp_path, module=Weighted(), data=whole, **options)
    layer, weights = Weighted().layer.double(), torch.arange(1.0, 25.0).double()
    for _ in range(6):
        loss = (nn.functional.cross_entropy(layer(ROWS.double()), LABELS, reduction="none") * weights).mean()
        gradients = torch.autograd.grad(loss, list(layer.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    assert_close(trainer.params, {f"layer.{name}": value.detach() for name, value in layer.named_parameters()}, 1e-12)
    assert trainer.executor.name == executor


def test_dicts_train_as_one_program_and_text_does_not() -> None:
    named = Items(lambda i: DICTS[i] | {"name": f"row {i}"})
    runs = []
    for data, executor in ((DICTS, "loop"), (DICTS, "vmap"), (named, "auto")):
        trainer = make_trainer(None, rounds=2, local_steps=2, executor=executor, clients_per_round=1.0)
        trainer.prepare(Weighted(), TorchDataset(data, num_clients=4, batch_size=3, num_workers=0))
        runs.append(trainer)
        trainer.train_round()
    assert [run.executor.name for run in runs] == ["loop", "vmap", "loop"]
    assert any("clients' batches may have different shapes" in note for note in runs[2].notes)
    assert_close(runs[1].params, runs[0].params, 1e-12)
    assert_close(runs[2].params, runs[0].params, 0)


# Targets --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "target"),
    [(DICTS, "y"), (Items(triple), 1), (DICTS, lambda item: item["y"]), (TENSORS, 1)],
    ids=["a key", "an index", "a function", "an index of tensors"],
)
@pytest.mark.parametrize("wrap", [False, True], ids=["TorchDataset", "LightningData"])
def test_targets_are_named(items: Any, target: Any, wrap: bool) -> None:
    options: dict[str, Any] = {"num_clients": 3, "partitioner": Dirichlet(0.5)}
    expected = ArrayData(train_inputs=ROWS.numpy(), train_targets=LABELS.numpy(), **options).federation

    class Loaders(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            return DataLoader(items, batch_size=4)

    data: Any = LightningData(Loaders(), target=target, **options) if wrap else TorchDataset(items, target=target, **options)
    data.num_workers = 0
    assert data.federation.partition.hash == expected.partition.hash
    assert partition_report(data.federation)[1] == partition_report(expected)[1]
    trainer = make_trainer(None, FedDisco(), rounds=1, local_steps=1, clients_per_round=1.0, precision="32-true")
    trainer.prepare(Weighted(), data)
    trainer.train_round()


class Column(L.LightningModule):
    """A regression whose targets are a column."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_column_of_targets_does_not_broadcast(executor: Any, stored: bool) -> None:
    items = TensorDataset(ROWS, ROWS[:, :1] * 2 + 1)
    data = TorchDataset(items if stored else Items(items.__getitem__), num_clients=1, batch_size=24, num_workers=0)
    trainer = make_trainer(None, rounds=1, local_steps=300, executor=executor, clients_per_round=1.0)
    model = Column()
    trainer.prepare(model, data)
    trainer.train_round()
    weight, bias = trainer.params["layer.weight"], trainer.params["layer.bias"]
    expected = {"w": torch.tensor([[2.0, 0, 0, 0, 0, 0]]).to(weight), "b": torch.ones(1).to(bias)}
    assert_close({"w": weight, "b": bias}, expected, 1e-3)
    assert trainer.executor.name == executor and data.federation.train.labels.shape == (24,)


def test_client_modules_get_class_indices_and_scaled_images() -> None:
    images = torch.randint(256, (24, 1, 4, 4), dtype=torch.uint8)
    runs = []
    for inputs, targets in ((images, torch.eye(3)[LABELS]), (images / 255, LABELS)):
        trainer = make_trainer(None, rounds=1, local_steps=2, clients_per_round=1.0)
        torch.manual_seed(0)
        model = flcog.Classifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)))
        trainer.prepare(model, TorchDataset(TensorDataset(inputs, targets), num_clients=2, batch_size=4))
        trainer.train_round()
        runs.append(trainer)
    assert_close(runs[0].params, runs[1].params, 1e-6)


UNLABELLED = Items(lambda i: ROWS[i])


def unlabelled(**options: Any) -> TorchDataset:
    return TorchDataset(UNLABELLED, num_clients=2, batch_size=4, num_workers=0, **options)


class Autoencoder(Weighted):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self.layer(batch) @ self.layer.weight - batch).square().mean()

    def forward(self, batch: Tensor) -> Tensor:
        return self.layer(batch)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ((), Autoencoder(), unlabelled(partitioner=Dirichlet(0.5))), 'has no targets, .*target="label"'),
        (
            lambda: ((FedDisco(),), Autoencoder(), unlabelled()),
            "FedDisco is defined for .*, not for unlabelled data: remove it, or name the targets, as in",
        ),
        (
            lambda: ((), flcog.Classifier(nn.Linear(6, 3)), unlabelled()),
            "Classifier learns from pairs .* is a Tensor: return pairs",
        ),
        (
            lambda: ((), Weighted(), TorchDataset(DICTS, cache_dir="x", num_workers=0)),
            "it is a dict of x, y, w, and an item is a pair",
        ),
    ],
)
def test_what_needs_targets_says_so(make: Any, message: str) -> None:
    with one_line(ValueError, message):
        methods, model, data = make()
        make_trainer(None, *methods, clients_per_round=1.0).prepare(model, data)


def test_a_run_without_targets(tmp_path: Path) -> None:
    options: dict[str, Any] = {"clients_per_round": 1.0, "local_steps": 2, "precision": "32-true"}
    straight = fit(tmp_path / "a", FedProx(mu=0.1), module=Autoencoder(), data=unlabelled(), rounds=2, **options)
    half = fit(tmp_path / "b", FedProx(mu=0.1), module=Autoencoder(), data=unlabelled(), rounds=1, **options)
    resumed = fit(
        tmp_path / "b", FedProx(mu=0.1), module=Autoencoder(), data=unlabelled(), rounds=2, ckpt_path=str(half.run_dir), **options
    )
    assert_close(resumed.params, straight.params, 0)
    numbers = partition_report(straight.federation)[1]
    assert numbers["clients"] == 2 and numbers["size/max"] == 12 and "classes" not in numbers and "kl/pooled" not in numbers
    assert "unlabelled" in dict(straight.run.description)["task"]


def test_predictions_of_unlabelled_data() -> None:
    trainer = make_trainer(None, precision="32-true", clients_per_round=1.0)
    model = Autoencoder()
    trainer.prepare(model, TorchDataset(UNLABELLED, UNLABELLED, num_clients=2, num_workers=0))
    predicted = trainer.predict()
    assert predicted.keys() == {"output"} and torch.allclose(predicted["output"], model(ROWS), atol=1e-6)
