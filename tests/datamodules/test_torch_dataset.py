"""TorchDataset: samples from arrays give the same bits as ArrayData. Streaming, cache files and resumed runs give the same results."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import distance, fit, make_trainer
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

import flcog
from datamodules.common import one_line
from flcog.datamodules import ArrayData, Dirichlet, Natural, TorchDataset
from flcog.datamodules.row_file import RowFile
from flcog.models import MLP

RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.normal(size=(60, 6)).astype(np.float32), RNG.integers(3, size=60)
COMMON: dict[str, Any] = {"num_clients": 5, "partitioner": Dirichlet(1.0), "batch_size": 4}
OPTIONS: dict[str, Any] = {"local_steps": None, "local_epochs": 1, "clients_per_round": 1.0, "rounds": 2, "eval_every": 1}


class Items(Dataset):
    """Pairs of an input and a target from two arrays.

    Args:
        inputs, targets: the arrays of all items.
        noise: the random stream for noise: ``torch``, ``numpy`` or ``python``; empty for no noise.
    """

    def __init__(self, inputs: Any = FEATURES, targets: Any = LABELS, noise: str = "") -> None:
        self.inputs, self.own, self.noise = inputs, targets, noise

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        draws = {"torch": lambda: float(torch.rand(())), "numpy": np.random.rand, "python": random.random}
        return torch.as_tensor(self.inputs[index]) + (draws[self.noise]() if self.noise else 0), int(self.own[index])


class Labelled(Items):
    """Has an attribute ``targets``, as torchvision's data sets do."""

    def __init__(self, shift: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.targets = (self.own + shift).tolist()


def module(network: Callable[[], nn.Module] = lambda: MLP(6, (8,), 3)) -> flcog.Classifier:
    torch.manual_seed(0)
    return flcog.Classifier(network())


def trained(data: Any, tmp_path: Path, net: Any = lambda: MLP(6, (8,), 3), **options: Any) -> Any:
    return fit(tmp_path, module=module(net), data=data, **OPTIONS | {"precision": "32-true"} | options)


def figures(trainer: Any) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if "time" not in name} for row in trainer.rows]


def of_arrays(**options: Any) -> ArrayData:
    arrays = {"train_inputs": FEATURES, "train_targets": LABELS, "test_inputs": FEATURES[:9], "test_targets": LABELS[:9]}
    return ArrayData(**arrays, **COMMON | options)


def of_items(train: Any = None, **options: Any) -> TorchDataset:
    test = Items(FEATURES[:9], LABELS[:9])
    return TorchDataset(train or Items(), test, **{"num_workers": 0, **COMMON, **options})


@pytest.mark.parametrize("options", [{"executor": "loop"}, {"executor": "vmap"}, {"executor": "loop", "chunk_size": 2}], ids=str)
def test_items_train_like_arrays(tmp_path: Path, options: dict[str, Any]) -> None:
    expected = trained(of_arrays(client_test=0.2), tmp_path, **options)
    data = of_items(client_test=0.2, num_workers=2 if "chunk_size" in options else 0)
    got = trained(data, tmp_path, **options)
    assert got.executor.name == options["executor"] and got.executor.clients_at_once == expected.executor.clients_at_once
    assert distance(got.state, expected.state) == 0 and figures(got) == figures(expected)


@pytest.mark.parametrize("noise", ["", "torch", "numpy", "python"])
def test_worker_processes_read_what_this_one_reads(noise: str) -> None:
    keys = np.arange(20, dtype=np.uint64) * np.uint64(2**60 + 7)
    here, there, again = (
        of_items(Items(noise=noise), num_workers=workers).federation.train.gather(torch.arange(20), keys) for workers in (0, 2, 1)
    )
    assert torch.equal(here, there) and torch.equal(there, again)
    assert torch.equal(here, torch.from_numpy(FEATURES[:20])) == (noise == "")
    inputs = of_items(Items(noise=noise)).federation.train
    rows = torch.tensor([3, 1, 3])
    assert torch.equal(inputs.gather(rows), inputs.gather(rows)) and torch.equal(inputs.gather(rows)[0], inputs.gather(rows)[2])


def test_reading_here_leaves_the_random_streams_alone() -> None:
    samples = of_items(Items(noise="numpy")).federation.train
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    samples.gather(torch.arange(3))
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0]) and np.array_equal(before[1], after[1]) and before[2] == after[2]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_streamed_equals_cached(tmp_path: Path, executor: Any) -> None:
    streamed = trained(of_items(), tmp_path, executor=executor)
    cached = trained(of_items(cache_dir=str(tmp_path / "cache")), tmp_path, executor=executor)
    assert distance(streamed.state, cached.state) == 0 and figures(streamed) == figures(cached)
    assert sorted(file.name for file in (tmp_path / "cache").glob("*.rows")) == ["test.rows", "train.rows"]


@pytest.mark.slow
def test_random_transforms_are_the_same_again_and_after_a_resume(tmp_path: Path) -> None:
    def data() -> TorchDataset:
        return of_items(Items(noise="torch"))

    straight = trained(data(), tmp_path / "a", executor="loop")
    first_half = trained(data(), tmp_path / "b", executor="loop", rounds=1)
    with_workers = of_items(Items(noise="torch"), num_workers=2)
    resumed = trained(with_workers, tmp_path / "b", executor="loop", ckpt_path=str(first_half.run_dir))
    assert distance(straight.state, resumed.state) == 0
    assert distance(straight.state, trained(of_items(), tmp_path / "c", executor="loop").state) > 1e-3
    first, second = (straight.recorder.assignments[r].works[0] for r in (0, 1))
    assert not np.array_equal(first.keys, second.keys)


class Counting(Items):
    """Records the indices of the items that were read, and fails at one of them if it is told to."""

    def __init__(self, inputs: Any = FEATURES, broken: int | None = None) -> None:
        super().__init__(inputs)
        self.read, self.broken = list[int](), broken

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.read.append(index)
        if index == self.broken:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


def cached(items: Items, tmp_path: Path) -> TorchDataset:
    return TorchDataset(items, targets=LABELS, num_workers=0, cache_dir=str(tmp_path), **COMMON)


def test_a_caching_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"the disk is gone\nin item 45 of the train set"):
        cached(Counting(broken=45), tmp_path).setup()
    again, third = Counting(), Counting()
    probes = set(np.linspace(0, 59, 8).astype(int).tolist())
    assert torch.equal(cached(again, tmp_path).federation.train.inputs, torch.from_numpy(FEATURES))
    assert set(again.read) - probes == set(range(32, 60)) - probes
    assert torch.equal(cached(third, tmp_path).federation.train.inputs, torch.from_numpy(FEATURES))
    assert set(third.read) <= probes


def test_a_folder_with_another_set_is_refused(tmp_path: Path) -> None:
    cached(Items(), tmp_path).setup()
    with one_line(ValueError, r"train.rows has 1,440 bytes, and this set takes 2,880: .*; delete it, or name another cache_dir"):
        cached(Items(FEATURES.astype(float)), tmp_path).setup()


class Transformed(Labelled):
    """Changes its targets in the item but not in the attribute, as torchvision's ``target_transform`` does."""

    def __init__(self, target_transform: Any, **options: Any) -> None:
        super().__init__(**options)
        self.target_transform = target_transform

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        input, target = super().__getitem__(index)
        return input, target if self.target_transform is None else self.target_transform(target)


TEN = np.arange(60) // 6


@pytest.mark.parametrize("wrap", [lambda items: items, lambda items: Subset(items, range(60))])
def test_a_target_that_an_item_changes_counts(wrap: Any) -> None:
    items = wrap(Transformed(lambda target: 3 if target == 7 else target, targets=TEN))
    assert of_items(items).federation.train.targets.tolist() == np.where(TEN == 7, 3, TEN).tolist()


def test_large_files_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flcog.datamodules.item_sets.IN_MEMORY_BYTES", 0)
    data = of_items(cache_dir=str(tmp_path / "cache"))
    assert isinstance(data.federation.train.inputs, RowFile)
    assert distance(trained(data, tmp_path).state, trained(of_items(), tmp_path).state) == 0


@pytest.mark.parametrize(
    "train",
    [
        Labelled(),
        Subset(Labelled(inputs=np.concatenate([FEATURES, FEATURES]), targets=np.concatenate([LABELS, LABELS])), range(60)),
        ConcatDataset([Labelled(inputs=FEATURES[:20], targets=LABELS[:20]), Labelled(inputs=FEATURES[20:], targets=LABELS[20:])]),
        TensorDataset(torch.from_numpy(FEATURES), torch.from_numpy(LABELS)),
        Subset(TensorDataset(torch.from_numpy(FEATURES), torch.from_numpy(LABELS)), range(60)),
        Labelled(shift=1),
    ],
    ids=["shown", "subset", "joined", "tensors", "subset of tensors", "shown wrongly"],
)
def test_where_targets_are_found(train: Any, capsys: pytest.CaptureFixture[str]) -> None:
    federation = TorchDataset(train, num_workers=0, **COMMON).federation
    assert torch.equal(federation.train.targets, torch.from_numpy(LABELS))
    assert torch.equal(torch.as_tensor(federation.train.gather(torch.arange(60))), torch.from_numpy(FEATURES))
    shown_wrongly = getattr(train, "targets", [9])[0] == LABELS[0] + 1
    assert ("reading the targets of the train set" in capsys.readouterr().err) == shown_wrongly


def test_a_set_of_tensors_is_taken_as_it_is() -> None:
    inputs = torch.from_numpy(FEATURES)
    assert TorchDataset(TensorDataset(inputs, torch.from_numpy(LABELS)), **COMMON).federation.train.inputs is inputs


def test_targets_of_other_kinds() -> None:
    values = of_items(targets={"train": FEATURES[:, 0], "test": FEATURES[:9, 0]})
    assert values.federation.task == "regression"
    names = of_items(targets={"train": np.array(["dog", "cat", "owl"])[LABELS], "test": ["cat"] * 9}).federation
    assert names.class_names == ("cat", "dog", "owl") and names.train.targets.tolist() == [[1, 0, 2][c] for c in LABELS]
    rows = np.eye(3)[LABELS] + np.eye(3)[LABELS[::-1]] > 0
    assert of_items(targets={"train": rows, "test": rows[:9]}).federation.task == "multilabel"


@pytest.mark.parametrize("kind", [Labelled, TensorDataset])
def test_a_list_has_a_data_set_for_each_client(kind: Any, tmp_path: Path) -> None:
    given = [(FEATURES[:10], LABELS[:10]), (FEATURES[10:], LABELS[10:])]
    sets = [
        kind(*map(torch.as_tensor, pair)) if kind is TensorDataset else kind(inputs=pair[0], targets=pair[1]) for pair in given
    ]
    trainer = flcog.FederatedTrainer(rounds=1, local_steps=1, logger=False, default_root_dir=str(tmp_path))
    trainer.fit(module(), sets)
    (tmp_path / "arrays").mkdir()
    arrays = ArrayData(train_inputs=FEATURES, train_targets=LABELS, train_users=np.repeat([0, 1], [10, 50]))
    other = flcog.FederatedTrainer(rounds=1, local_steps=1, logger=False, default_root_dir=str(tmp_path / "arrays"))
    other.fit(module(), arrays)
    assert list(trainer.clients["samples"]) == [10, 50]
    assert TorchDataset(sets, users=[*"abc"] * 20).federation.num_clients == 3
    assert all(torch.equal(one, two) for one, two in zip(trainer.model.parameters(), other.model.parameters(), strict=True))


def test_users_are_the_clients() -> None:
    owners = np.array(["ann", "bob", "cem"])[np.arange(60) % 3]
    by_array = TorchDataset(Items(), users=owners, num_workers=0).federation
    by_index = TorchDataset(Items(), users=lambda index: "abc"[index % 3], num_workers=0).federation
    shown = Items()
    shown.owners = owners  # type: ignore[attr-defined]
    by_name = TorchDataset(shown, users="owners", num_workers=0).federation
    assert by_array.num_clients == 3 and by_array.partition.client(1).tolist() == list(range(1, 60, 3))
    assert by_array.partition.hash == by_index.partition.hash == by_name.partition.hash
    assert TorchDataset(Items(), users=owners, partitioner=Natural(max_users=2), num_workers=0).federation.num_clients == 2


def test_pictures_need_no_transform() -> None:
    pixels = RNG.integers(256, size=(6, 5, 4, 3), dtype=np.uint8)

    class Pictures(Items):
        def __getitem__(self, index: int) -> tuple[Any, Any]:
            return Image.fromarray(pixels[index]), int(LABELS[index])

    federation = TorchDataset(Pictures(FEATURES[:6]), num_workers=0, num_clients=2, num_classes=3).federation
    inputs, _ = federation.load(federation.train, torch.arange(6), torch.device("cpu"))
    assert torch.equal(inputs, torch.from_numpy(pixels.transpose(0, 3, 1, 2) / np.float32(255)))


def pad(items: list[tuple[Tensor, int]]) -> tuple[dict[str, Tensor], Tensor]:
    words = nn.utils.rnn.pad_sequence([words for words, _ in items], batch_first=True)
    lengths = torch.tensor([len(words) for words, _ in items])
    return {"words": words, "mask": torch.arange(words.shape[1]) < lengths[:, None]}, torch.tensor([label for _, label in items])


class Texts(Dataset):
    """Texts of token ids, with different lengths unless a length is given."""

    def __init__(self, length: int | None = None) -> None:
        rng = np.random.default_rng(2)
        lengths = [length or int(n) for n in rng.integers(2, 9, 60)]
        self.texts = [torch.from_numpy(rng.integers(1, 20, n)) for n in lengths]
        self.labels = LABELS

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.texts[index], int(LABELS[index])


class BagOfWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        return self.head((self.embedding(words) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def texts(length: int | None = None, collate_fn: Any = pad) -> TorchDataset:
    return TorchDataset(Texts(length), Texts(length), collate_fn=collate_fn, num_workers=0, **COMMON)


def test_batches_of_ones_own(tmp_path: Path) -> None:
    """Padding each batch gives the same result as padding all texts to one length beforehand, because the network masks padding."""
    everything = pad([Texts()[index] for index in range(60)])[0]

    class Padded(Texts):
        def __getitem__(self, index: int) -> Any:
            return {name: value[index] for name, value in everything.items()}, int(LABELS[index])

    ragged = trained(texts(), tmp_path, BagOfWords, executor="auto", precision="64-true")
    whole = trained(
        TorchDataset(Padded(), Padded(), num_workers=0, **COMMON), tmp_path, BagOfWords, executor="loop", precision="64-true"
    )
    assert distance(ragged.state, whole.state) < 1e-14
    assert ragged.notes == ["executor: loop, 1 client at a time (clients' batches may have different shapes)"]


def test_batches_of_one_shape_may_be_vectorised(tmp_path: Path) -> None:
    loop, vmap = (
        trained(texts(5), tmp_path, BagOfWords, executor=executor, precision="64-true") for executor in ("auto", "vmap")
    )
    assert vmap.executor.name == "vmap" and distance(loop.state, vmap.state) < 1e-14
    assert loop.notes == ["executor: loop, 1 client at a time (clients' batches may have different shapes)"]


def test_batches_of_different_shapes_fall_back(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="falls back to loop: the model fails in .*Sizes of tensors must match"):
        assert trained(texts(), tmp_path, BagOfWords, executor="vmap", rounds=1).executor.name == "loop"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: TorchDataset(Items(), targets=LABELS[:-1]), "inputs and targets have 60 and 59 rows"),
        (lambda: TorchDataset(Items(), Items(FEATURES[:0])), "the test set is empty"),
        (lambda: TorchDataset(FEATURES), "learns from pairs .*, and a batch of the training set is a Tensor"),
        (lambda: TorchDataset(Items(), targets="ys"), r"the train set \(Items\) has no attribute 'ys'"),
        (lambda: TorchDataset(Stream()), "train is a Stream, a stream, whose samples have no clients"),
    ],
)
def test_what_it_refuses(make: Any, what: str) -> None:
    with one_line(ValueError, what):
        data = make()
        data.num_workers = min(data.num_workers, 0)
        make_trainer(None, **OPTIONS).prepare(module(), data)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter([])


class WhoReads(Items):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return torch.tensor([os.getpid(), os.getppid()]), 0


def test_transforms_run_in_the_workers() -> None:
    who = TorchDataset(WhoReads(), targets=LABELS, num_workers=2, **COMMON).federation.train.gather(torch.arange(60))
    assert set(who[:, 1].tolist()) == {os.getpid()} and os.getpid() not in who[:, 0]


class Fragile(Items):
    """Reading item 57 ends the process, and reading item 58 raises an error."""

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if index == 57:
            os._exit(1)
        if index == 58:
            raise KeyError("pixels")
        return super().__getitem__(index)


def test_workers_that_fail() -> None:
    samples = TorchDataset(Fragile(), targets=LABELS, num_workers=1, **COMMON).federation.train
    with pytest.raises(KeyError, match=r"in __getitem__(.|\n)*pixels(.|\n)*in item 58 of the train set"):
        samples.gather(torch.tensor([56, 58]))
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* exited unexpectedly"):
        samples.gather(torch.tensor([57]))
