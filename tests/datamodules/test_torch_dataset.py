"""TorchDataset: samples from arrays give the same bits as ArrayData. Streaming, cache files and resumed runs give the same results."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import TESTS, distance, fit, make_trainer
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

import flcog
from datamodules.common import one_line
from flcog.datamodules import ArrayData, Dirichlet, Natural, TorchDataset, row_file
from flcog.datamodules.fingerprint import fingerprint
from flcog.datamodules.row_file import CheckedRows
from flcog.models import MLP, SimpleCNN

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


def test_random_changes_of_held_out_items_are_noted() -> None:
    """Nobody can tell a data set to leave out its own transform, so that the clients' held-out samples have it too."""
    noisy, still, not_held_out = (
        of_items(Items(noise=noise), client_val=fraction) for noise, fraction in (("numpy", 0.2), ("", 0.2), ("numpy", 0.0))
    )
    for data in (noisy, still, not_held_out):
        data.setup()
    assert not still.notes and not not_held_out.notes
    assert noisy.notes == (
        "the training set changes its items at random, also those of client_val: give a val and a test set, to measure without",
    )


def test_the_digits_train_like_their_arrays(tmp_path: Path) -> None:
    from flcog.datamodules import Digits

    digits = Digits(num_clients=2, batch_size=16)
    federation = digits.federation
    images = federation.preprocess(federation.train.inputs).contiguous()
    items = TorchDataset(
        Items(images, federation.train.targets), cache_dir=str(tmp_path), num_clients=2, batch_size=16, num_workers=0
    )
    options = {"rounds": 1, "local_steps": 2, "local_epochs": None, "eval_every": 0, "net": lambda: SimpleCNN(1, 10)}
    assert distance(trained(digits, tmp_path, **options).state, trained(items, tmp_path, **options).state) == 0


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
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 2


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


class Slow(Items):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        time.sleep(0.02)
        return super().__getitem__(index)


class Counting(Items):
    """Records the indices of the items that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.read.append(index)
        return super().__getitem__(index)


@pytest.mark.parametrize(("limit", "value", "kept"), [("CHUNK_BYTES", 24 * 20, 40), ("SECONDS", 0.0, 32), ("SECONDS", 60.0, 0)])
def test_a_caching_that_was_cut_off_goes_on(
    limit: str, value: float, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_file, limit, value)

    class Broken(Exception):
        pass

    works: list[bool] = []

    class Failing(Counting):
        def __getitem__(self, index: int) -> tuple[Any, Any]:
            if index == 45 and len(self.read) > 40 and not works:
                raise Broken("the disk is gone")
            return super().__getitem__(index)

    def data(items: Items) -> TorchDataset:
        return TorchDataset(items, targets=LABELS, num_workers=0, cache_dir=str(tmp_path), **COMMON)

    with one_line(ValueError, "item 45 cannot be read: Broken: the disk is gone"):
        data(Failing()).prepare_data()
    works.append(True)
    again = Failing()
    assert torch.equal(data(again).federation.train.inputs, torch.from_numpy(FEATURES))
    probes = set(np.unique(np.linspace(0, 59, 16).astype(int)))
    assert set(again.read) - probes == set(range(kept, 60)) - probes
    third = Failing()
    assert torch.equal(data(third).federation.train.inputs, torch.from_numpy(FEATURES)) and set(third.read) <= probes


def test_another_transform_makes_another_file(tmp_path: Path) -> None:
    for inputs in (FEATURES, FEATURES * 2):
        data = of_items(Items(inputs), cache_dir=str(tmp_path))
        assert torch.equal(data.federation.train.inputs, torch.from_numpy(inputs))


@pytest.mark.parametrize("place", ["an item", "a target", "a file", "a default of the transform"])
def test_what_changed_is_read_anew(place: str, tmp_path: Path) -> None:
    """The cache notices a change in any item, in the content of a file, and in the effect of a transform."""
    inputs, targets, file = FEATURES.copy(), LABELS.copy(), tmp_path / "features.npy"
    np.save(file, FEATURES)

    class Read(Items):
        def __init__(self, factor: float = 1.0) -> None:
            super().__init__(inputs, targets)
            self.file = str(file)
            self.transform = lambda row, factor=factor: row * factor

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            input, target = super().__getitem__(index)
            return self.transform(input + torch.from_numpy(np.load(self.file)[index])), target

    def samples(factor: float = 1.0) -> Any:
        return of_items(Read(factor), cache_dir=str(tmp_path / "cache")).federation.train

    assert torch.equal(samples().inputs, torch.from_numpy(FEATURES + FEATURES))
    if place == "an item":
        inputs[5] += 1
    elif place == "a target":
        targets[5] = (targets[5] + 1) % 3
    elif place == "a file":
        changed = FEATURES.copy()
        changed[5] += 1
        np.save(file, changed)
    factor = 2.0 if place == "a default of the transform" else 1.0
    found = samples(factor)
    assert torch.equal(found.inputs, factor * torch.from_numpy(inputs + np.load(file)))
    assert found.targets.tolist() == targets.tolist()


def test_a_set_that_does_not_show_its_content_is_read_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden = FEATURES.copy()

    class Handle:
        """An object that cannot be pickled, like a handle of a C library."""

        __slots__ = ()

        def __reduce_ex__(self, version: Any) -> Any:
            raise TypeError("cannot pickle a handle")

    class Hidden(Items):
        def __init__(self) -> None:
            super().__init__(range(60))
            self.handle = Handle()

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            return torch.from_numpy(hidden[index]), int(LABELS[index])

    def inputs() -> Tensor:
        return of_items(Hidden(), cache_dir=str(tmp_path)).federation.train.inputs  # type: ignore[no-any-return]

    assert fingerprint(Hidden(), tmp_path) is None
    assert torch.equal(inputs(), torch.from_numpy(FEATURES))
    assert "Hidden does not show all of its content" in " ".join(capsys.readouterr().err.split())
    hidden[5] += 1
    assert torch.equal(inputs(), torch.from_numpy(hidden))


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_another_process(tmp_path: Path) -> None:
    program = """
import functools, pathlib, torch, torchvision
from torchvision.transforms import v2
from flcog.datamodules.fingerprint import fingerprint
scale = functools.partial(torch.mul, other=2)
transform = v2.Compose([v2.ToImage(), v2.RandomCrop(4, padding=1), v2.Normalize([0.5], [0.5]), scale])
data = torchvision.datasets.FakeData(10, (1, 4, 4), transform=transform)
data.names = {"cat", "dog", "bird"}
found = fingerprint(torch.utils.data.Subset(data, [3, 1]), pathlib.Path("."))
"""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", f"{program}print(found)"]
    there = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment).stdout.strip()
    here: dict[str, Any] = {}
    exec(program, here)
    assert there == here["found"] and len(there) == 20


class Transformed(Labelled):
    """Changes its targets in the item but not in the attribute, as torchvision's ``target_transform`` does."""

    def __init__(self, target_transform: Any, **options: Any) -> None:
        super().__init__(**options)
        self.target_transform = target_transform

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        input, target = super().__getitem__(index)
        return input, target if self.target_transform is None else self.target_transform(target)


class Relabelled(Labelled):
    """Changes a single class in the items. The attribute ``targets`` has the unchanged targets."""

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        input, target = super().__getitem__(index)
        return input, 3 if target == 7 else target


TEN = np.arange(60) // 6


@pytest.mark.parametrize("options", [{}, {"cache_dir": "cache"}])
def test_inputs_that_are_not_finite_are_refused(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inputs = FEATURES.copy()
    inputs[59] = np.inf
    with one_line(
        ValueError, "the train set: item 59 cannot be read: its input holds NaN or infinite values; correct or drop it"
    ):
        of_items(Items(inputs), **options).setup()


@pytest.mark.parametrize("wrap", [lambda items: items, lambda items: Subset(items, range(60))])
@pytest.mark.parametrize("make", [Relabelled, partial(Transformed, lambda target: 3 if target == 7 else target)])
def test_a_target_that_an_item_changes_counts(make: Any, wrap: Any) -> None:
    found = of_items(wrap(make(targets=TEN))).federation.train.targets
    assert found.tolist() == np.where(TEN == 7, 3, TEN).tolist()


def test_a_target_transform_may_change_any_item() -> None:
    items = Transformed(lambda row: int(row == 45), targets=np.arange(60))
    items.targets = [0] * 60
    assert of_items(items).federation.train.targets[45] == 1


class Endless(Items):
    def __len__(self) -> int:
        return 10**9


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (Subset(Items(), [3, 60]), "train is a Subset with index 60, and its data set has 60 items: indices go from 0 to 59"),
        (Subset(Items(), [0.5]), "train is a Subset whose indices are float64: give whole numbers"),
        (Endless(), r"train \(Endless\) has a length of 1,000,000,000, and at most 100,000,000 items can be divided"),
    ],
)
def test_impossible_lengths_and_indices_are_refused(items: Any, message: str) -> None:
    with one_line(ValueError, message):
        TorchDataset(items)


SCALE = {"factor": 1.0}


def scaled(row: Tensor) -> Tensor:
    return row * SCALE["factor"]


class Scaled(Items):
    shift = 0.0

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        input, target = super().__getitem__(index)
        return scaled(input) + self.shift, target


@pytest.mark.parametrize(("owner", "name", "value"), [(Scaled, "shift", 1.0), (SCALE, "factor", 2.0)])
def test_a_fingerprint_depends_on_the_globals_and_class_attributes_that_code_reads(
    owner: Any, name: Any, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint(Scaled(), tmp_path)
    (monkeypatch.setitem if owner is SCALE else monkeypatch.setattr)(owner, name, value)
    assert before is not None and fingerprint(Scaled(), tmp_path) not in (None, before)


def test_views_of_one_memory_mapped_file_have_different_fingerprints(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(10))
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert fingerprint(rows[1:3], tmp_path) != fingerprint(rows[2:4], tmp_path)


@pytest.mark.parametrize("most_in_memory", [2**31, 0])
def test_a_flipped_bit_is_found(most_in_memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flcog.datamodules.item_sets.IN_MEMORY_BYTES", most_in_memory)
    of_items(cache_dir=str(tmp_path)).prepare_data()
    (file,) = tmp_path.glob("train-*.npy")
    content = bytearray(file.read_bytes())
    content[-24 * 20 + 3] ^= 64
    file.write_bytes(content)
    with one_line(
        ValueError, r"row 45 of .*train-.*\.npy is damaged: its checksum does not match; delete it, and it is made again"
    ):
        of_items(cache_dir=str(tmp_path)).federation.train.gather(torch.arange(60))


def test_large_files_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flcog.datamodules.item_sets.IN_MEMORY_BYTES", 0)
    data = of_items(cache_dir=str(tmp_path / "cache"))
    assert isinstance(data.federation.train.inputs, CheckedRows)
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
    assert ("reading the targets of the train set" in capsys.readouterr().err) == (
        getattr(train, "targets", [9])[0] == LABELS[0] + 1
    )


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


def test_pictures_of_16_bits_and_more() -> None:
    """Greys of 16 bits are scaled to [0, 1] with all of their digits; whole numbers of 32 bits have no known white."""
    greys = np.linspace(0, 65535, 12 * 16).astype(np.uint16).reshape(12, 4, 4)

    def data(kind: type) -> TorchDataset:
        return TorchDataset([(Image.fromarray(grey.astype(kind)), int(i % 2)) for i, grey in enumerate(greys)], num_workers=0)

    federation = data(np.uint16).federation
    inputs, _ = federation.load(federation.train, torch.arange(12), torch.device("cpu"))
    assert inputs.dtype == torch.float32
    np.testing.assert_allclose(inputs[:, 0], greys / 65535, rtol=1e-6)
    with one_line(ValueError, r"a picture of 32-bit numbers \(mode I\), whose black and white are unknown"):
        data(np.int32).setup()


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
    with pytest.warns(UserWarning, match=r"falls back to loop: the model fails in .*batches have different shapes: \[\d, \d\]"):
        assert trained(texts(), tmp_path, BagOfWords, executor="vmap", rounds=1).executor.name == "loop"


def wrong_targets(items: list[Any]) -> tuple[Any, Any]:
    inputs, targets = pad(items)
    return inputs, targets + 1


def nothing(items: list[Any]) -> Any:
    raise KeyError("words")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: TorchDataset(Items(), targets=LABELS[:-1]), "60 items but 59 targets: give one for each item"),
        (lambda: TorchDataset(Items(), users=LABELS[:-1]), "60 samples but 59 users: give one for each sample"),
        (lambda: TorchDataset(Items(), Items(FEATURES[:0])), "the test set is empty"),
        (
            lambda: TorchDataset(FEATURES),
            "learns from pairs of an input and a target, and a batch of the training set is a Tensor",
        ),
        (
            lambda: TorchDataset([(1.0, 2, 3)] * 20),
            "a batch of the training set is a list of 3 parts: return pairs, name the target",
        ),
        (lambda: TorchDataset([{"x": 1.0}] * 20), "a batch of the training set is a dict of x: return pairs"),
        (
            lambda: TorchDataset([(torch.zeros(2), None)] * 20),
            "no batch can be made: TypeError: default_collate: batch must contain",
        ),
        (
            lambda: TorchDataset([("a text", 0)] * 20),
            "a batch of the training set contains a str: make tensors in a transform",
        ),
        (
            lambda: TorchDataset([(torch.zeros(2), {"a": 1})] * 20),
            "a batch of the training set is a list of 2 parts: return pairs",
        ),
        (lambda: TorchDataset(Texts()), "their shapes differ .*: give a collate_fn that pads them"),
        (lambda: TorchDataset(Texts(), cache_dir="cache"), "a file keeps items of one shape; leave out cache_dir"),
        (lambda: TorchDataset(Texts(), collate_fn=pad, cache_dir="cache"), "leave out cache_dir, or pad the items"),
        (lambda: TorchDataset(Texts(), collate_fn=wrong_targets), r"collate_fn makes the targets \[\d"),
        (lambda: TorchDataset(Texts(), collate_fn=nothing), "no batch can be made: KeyError: 'words'"),
        (lambda: TorchDataset(Items(), targets="ys"), r"the train set \(Items\) has no attribute 'ys'"),
        (lambda: TorchDataset(Items(), users="who"), r"\(Items\) has no attribute 'who'"),
        (
            lambda: TorchDataset(Items(), targets={"training": LABELS}),
            "targets are by part, of train, test and val; got training",
        ),
        (lambda: TorchDataset(iter([])), "train is a list_iterator, no data set"),
        (lambda: TorchDataset(Stream()), "train is a Stream, a stream, whose samples cannot be given to clients"),
        (lambda: TorchDataset(Items(), users=[None, "ann", *"ab" * 29]), "sample 0 has no user, and 0 others"),
        (lambda: TorchDataset(Items(), users=FEATURES), r"one name or number per sample; they have shape \(60, 6\)"),
        (lambda: TorchDataset(Items(), num_workers=-1), "num_workers must be at least 0"),
        (
            lambda: TorchDataset(Items(), targets={"train": ["a"] * 60, "test": ["b"] * 9}, test=Items(FEATURES[:9])),
            "the class 'b', which",
        ),
    ],
)
def test_what_it_refuses(make: Any, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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
    message = r"^the train set: item 58 cannot be read: KeyError: 'pixels' \(.*test_torch_dataset.py, line \d+\)$"
    with pytest.raises(ValueError, match=message) as caught:
        samples.gather(torch.tensor([56, 58]))
    assert "__getitem__" in str(caught.value.__cause__)
    with one_line(ValueError, "a process that reads the data set died .* set num_workers lower"):
        samples.gather(torch.tensor([57]))


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """The workers apply random transforms, and end with the killed process. The resumed run has another number of workers."""

    def run(folder: str, workers: int, rounds: int = 6, ckpt_path: str | None = None) -> Any:
        data = of_items(Items(noise="numpy"), num_workers=workers)
        return trained(data, tmp_path / folder, executor="loop", rounds=rounds, ckpt_path=ckpt_path)

    straight = run("straight", 2)
    code = (
        "import pathlib, torch; from datamodules.test_torch_dataset import Items, of_items, trained; torch.set_num_threads(1); "
        f"trained(of_items(Items(noise='numpy'), num_workers=2), pathlib.Path({str(tmp_path / 'killed')!r}), executor='loop', rounds=200)"
    )
    process = subprocess.Popen([sys.executable, "-P", "-c", code], env={**os.environ, "PYTHONPATH": str(TESTS)})
    began, rows = time.monotonic(), 0
    while rows < 3:
        assert process.poll() is None and time.monotonic() - began < 120
        time.sleep(0.01)
        files = list((tmp_path / "killed").glob("*/metrics.csv"))
        rows = len(files[0].read_text().splitlines()) - 1 if files else 0
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.kill()
    process.wait()
    resumed = run("killed", 1, max(6, rows + 3), ckpt_path="last")
    expected = straight if resumed.settings.rounds == 6 else run("further", 0, resumed.settings.rounds)
    assert distance(resumed.state, expected.state) == 0
    assert len(children) == 2
    while any(map(runs, children)):
        assert time.monotonic() - began < 120
        time.sleep(0.05)


def runs(pid: int) -> bool:
    """Whether a process with this id exists and has not ended."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_stream_predicts_inputs_of_its_form(tmp_path: Path) -> None:
    trainer = make_trainer(None, rounds=1, precision="32-true")
    trainer.prepare(module(), of_items())
    assert len(trainer.predict(inputs=FEATURES[:5])["prediction"]) == 5
    with one_line(ValueError, r"inputs must be as the data set stores them, float32 \[N, 6\]"):
        trainer.predict(inputs=FEATURES[:5, :4])
