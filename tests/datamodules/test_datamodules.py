"""Every data module on small files of exactly its real format, which the tests write, and one clear line for files that are not."""

import csv
import gzip
import hashlib
import inspect
import json
import pickle
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch import Tensor

import flcog.datamodules
from flcog import FederatedTrainer
from flcog.data import FederatedDataModule, Federation, Samples
from flcog.datamodules import (
    CIFAR10,
    CIFAR100,
    FEMNIST,
    HAM10000,
    IID,
    MNIST,
    AGNews,
    ArrayData,
    BiasedUnbiased,
    Digits,
    Dirichlet,
    DSprites,
    FacebookComments,
    FashionMNIST,
    ImageFolders,
    LeastSquares,
    LongTail,
    Natural,
    Quadratics,
    Shuffled,
    ag_news,
    dsprites,
)
from flcog.datamodules.files import standardisation

CPU = torch.device("cpu")


def everything(federation: Federation, samples: Samples) -> tuple[Tensor, Tensor]:
    return federation.load(samples, torch.arange(len(samples)), CPU)


@contextmanager
def one_line(error: type[Exception], message: str) -> Iterator[None]:
    with pytest.raises(error, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)


def bytes_of(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


MODULES = {name for name in flcog.datamodules.__all__ if isinstance(getattr(flcog.datamodules, name), type)} & {
    name for name, cls in vars(flcog.datamodules).items() if isinstance(cls, type) and issubclass(cls, FederatedDataModule)
}


def parse(*arguments: str) -> FederatedDataModule:
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedDataModule, "data")
    return parser.instantiate(parser.parse_args(arguments)).data


def test_all_data_sets_are_listed() -> None:
    assert len(MODULES) == 14


@pytest.mark.parametrize("name", sorted(MODULES))
def test_yaml_reaches_own_and_base_arguments(name: str) -> None:
    cls = getattr(flcog.datamodules, name)
    documented = inspect.getdoc(cls) or ""
    own = {n for n in inspect.signature(cls.__init__).parameters if n not in ("self", "kwargs")}
    assert not {argument for argument in own if f"    {argument}: " not in documented}, "undocumented arguments"
    extra = ("--data.path=x.npz",) if name == "ArrayData" else ()
    data = parse(f"--data={name}", "--data.num_clients=20", "--data.batch_size=7", "--data.client_test=0.25", *extra)
    assert type(data) is cls and (data.num_clients, data.batch_size, data.client_test) == (20, 7, 0.25)


def test_yaml_makes_typed_values() -> None:
    data = parse("--data=CIFAR10", "--data.mean=[0.1, 0.2, 0.3]", "--data.partitioner=Dirichlet", "--data.partitioner.beta=0.1")
    assert isinstance(data, CIFAR10) and data.mean == (0.1, 0.2, 0.3) and data.partitioner == Dirichlet(0.1)
    arrays = parse("--data=ArrayData", "--data.path=x.npz", "--data.mean=auto", "--data.std=auto")
    assert isinstance(arrays, ArrayData) and arrays.mean == "auto"
    assert parse("--data=FEMNIST").partitioner == Natural()
    assert parse("--data=FEMNIST", "--data.partitioner=IID").partitioner == IID()


@pytest.mark.parametrize("size", [8, 28, 32])
def test_digits(size: int) -> None:
    data = Digits(image_size=size, num_clients=10, partitioner=Dirichlet(0.5))
    federation = data.federation
    assert federation.test is not None and federation.num_clients == 10 and federation.num_classes == 10
    assert (len(federation.train), len(federation.test)) == (1442, 355)
    assert federation.train.inputs.shape[1:] == (size, size, 1) and federation.train.inputs.dtype == torch.uint8
    assert federation.test.targets.bincount().tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    inputs, _ = everything(federation, federation.train)
    assert inputs.shape[1:] == (1, size, size) and inputs.is_contiguous(memory_format=torch.channels_last)
    assert abs(inputs.mean()) < 0.01 and (size == 8 or abs(inputs.std() - 1) < 0.02)
    assert Digits(image_size=size).federation.partition.hash == Digits(image_size=size).federation.partition.hash


def test_digits_too_small() -> None:
    with one_line(ValueError, "image_size must be at least 8"):
        Digits(image_size=4)


def write_mnist(folder: Path, train: int = 40, test: int = 10) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, count in (("train", train), ("t10k", test)):
        images, labels = bytes_of(count, 28, 28), np.arange(count, dtype=np.uint8) % 10
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    return arrays


@pytest.mark.parametrize("cls", [MNIST, FashionMNIST])
def test_mnist(tmp_path: Path, cls: type[MNIST]) -> None:
    arrays = write_mnist(tmp_path / cls.__name__ / "raw")
    federation = cls(data_dir=str(tmp_path), num_clients=2).federation
    assert federation.test is not None and federation.class_names is not None and len(federation.class_names) == 10
    assert np.array_equal(federation.train.inputs, arrays["train_images"][..., None])
    assert np.array_equal(federation.test.targets, arrays["t10k_labels"])
    inputs, _ = everything(federation, federation.test)
    mean, std = (0.1307, 0.3081) if cls is MNIST else (0.5, 0.5)
    np.testing.assert_allclose(inputs[:, 0], (arrays["t10k_images"] / 255 - mean) / std, rtol=1e-4, atol=1e-5)
    assert (federation.augment is None) == (cls is MNIST)


def test_mnist_subset(tmp_path: Path) -> None:
    arrays = write_mnist(tmp_path / "MNIST" / "raw")
    train = MNIST(data_dir=str(tmp_path), samples_per_class=2, num_clients=1).federation.train
    assert np.array_equal(train.inputs, arrays["train_images"][:20, ..., None])


def test_mnist_unpacks_archives_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw)
    resources = []
    for file in sorted(raw.iterdir()):
        archive = raw / f"{file.name}.gz"
        archive.write_bytes(gzip.compress(file.read_bytes()))
        resources.append((archive.name, hashlib.md5(archive.read_bytes()).hexdigest()))
        file.unlink()
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    assert len(MNIST(str(tmp_path), num_clients=2).federation.train) == 40
    assert len(MNIST(str(tmp_path), download=True, num_clients=2).federation.train) == 40


def test_mnist_broken(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw)
    labels = raw / "train-labels-idx1-ubyte"
    whole = labels.read_bytes()
    for broken in (whole[:-1], whole[:3], b"not an idx file at all", struct.pack(">II", 2049, 3) + b"\0\1\2"):
        labels.write_bytes(broken)
        with one_line(ValueError, "train-labels-idx1-ubyte cannot be read"):
            MNIST(str(tmp_path)).setup()
    with one_line(ValueError, "samples_per_class"):
        MNIST(samples_per_class=0)


def write_cifar(root: Path, cls: type[CIFAR10], monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Five training batches, or one, of 20 images; torchvision is told their checksums."""
    source, num_classes = getattr(torchvision.datasets, cls.__name__), cls.num_classes
    folder, key, arrays = root / source.base_folder, source.meta["key"], {}
    folder.mkdir(parents=True)

    def write(name: str, content: dict[str, Any]) -> str:
        (folder / name).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    for part, attribute in (("train", "train_list"), ("test", "test_list")):
        listing = []
        for number, (name, _) in enumerate(getattr(source, attribute)):
            images, labels = bytes_of(20, 3, 32, 32, seed=number), (np.arange(20) * 7 % num_classes).tolist()
            md5 = write(name, {"data": images.reshape(20, -1), key.replace("_names", "s"): labels})
            listing.append((name, md5))
            arrays[f"{part}{number}"] = images.transpose(0, 2, 3, 1)
        monkeypatch.setattr(source, attribute, listing)
    md5 = write(source.meta["filename"], {key: [f"class {c}" for c in range(num_classes)]})
    monkeypatch.setattr(source, "meta", {**source.meta, "md5": md5})
    return arrays


@pytest.mark.parametrize("cls", [CIFAR10, CIFAR100])
def test_cifar(tmp_path: Path, cls: type[CIFAR10], monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = write_cifar(tmp_path, cls, monkeypatch)
    train_images = np.concatenate([images for name, images in arrays.items() if name.startswith("train")])
    data = cls(data_dir=str(tmp_path), num_clients=2)
    federation = data.federation
    assert federation.test is not None and federation.val is None and federation.augment is not None
    assert federation.class_names == tuple(f"class {c}" for c in range(cls.num_classes))
    assert np.array_equal(federation.train.inputs, train_images) and np.array_equal(federation.test.inputs, arrays["test0"])
    assert federation.train.targets[:3].tolist() == [0, 7, 14 % cls.num_classes]
    inputs, _ = everything(federation, federation.test)
    expected = (arrays["test0"] / 255 - np.array(data.mean)) / np.array(data.std)
    np.testing.assert_allclose(inputs.permute(0, 2, 3, 1), expected, rtol=1e-4, atol=1e-5)

    held_out = cls(data_dir=str(tmp_path), num_clients=2, val_fraction=0.1, augmentation="none").federation
    count = len(train_images)
    assert held_out.val is not None and held_out.augment is None
    assert np.array_equal(held_out.val.inputs, train_images[count - count // 10 :])
    assert np.array_equal(held_out.train.inputs, train_images[: count - count // 10])


@pytest.mark.parametrize("cls", [CIFAR10, CIFAR100])
def test_cifar_enlarged(tmp_path: Path, cls: type[CIFAR10], monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path, cls, monkeypatch)
    data = [cls(data_dir=str(tmp_path), num_clients=2, **options) for options in ({}, {"image_size": None}, {"image_size": 48})]
    plain, same, large = (module.federation for module in data)
    assert large.train.inputs.shape[1:] == (32, 32, 3)
    # Augmented at the size of the files.
    for keys in (None, np.arange(6, dtype=np.uint64)):
        inputs, unchanged, enlarged = (
            federation.load(federation.train, torch.arange(6), torch.device("cpu"), keys)[0]
            for federation in (plain, same, large)
        )
        assert torch.equal(unchanged, inputs) and inputs.shape == (6, 3, 32, 32)
        assert enlarged.shape == (6, 3, 48, 48) and enlarged.dtype == inputs.dtype
        expected = torch.nn.functional.interpolate(inputs, size=(48, 48), mode="bilinear", align_corners=False)
        assert torch.equal(enlarged, expected)
    assert parse(f"--data={cls.__name__}", "--data.image_size=224").image_size == 224
    for size in (31, 0):
        with one_line(ValueError, f"image_size must be at least 32; got {size}: null keeps"):
            cls(image_size=size)


def test_cifar_missing_and_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = r"https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    with one_line(FileNotFoundError, rf"CIFAR10 found no .*data_batch_1.* and 4 more.*download true.*{url}"):
        CIFAR10(str(tmp_path)).setup()
    write_cifar(tmp_path, CIFAR10, monkeypatch)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"broken")
    with one_line(ValueError, r"CIFAR10: \S*data_batch_3 differs from the published file"):
        CIFAR10(str(tmp_path)).setup()
    with one_line(ValueError, "val_fraction"):
        CIFAR10(val_fraction=1.0)


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})
    return str(path)


def test_a_test_set_like_the_clients() -> None:
    rng = np.random.default_rng(0)
    train, test = rng.permutation(np.arange(5000) % 10), rng.permutation(np.arange(1000) % 10)
    arrays = {
        "train_inputs": train[:, None],
        "train_targets": train,
        "test_inputs": np.arange(1000.0)[:, None],
        "test_targets": test,
    }
    data = ArrayData(**arrays, num_clients=5, partitioner=LongTail(10, IID()), test_like_clients=True)
    kept = data.federation.test
    assert kept is not None
    # FedDisco's rule for its test set: n_1 rho^(-(c - 1) / (C - 1)) of each class, for n_1 = 100.
    assert kept.targets.bincount().tolist() == [int(100 * 10 ** (-c / 9) + 1e-9) for c in range(10)]
    rows = np.asarray(kept.inputs)[:, 0].astype(int)
    assert np.array_equal(test[rows], kept.targets) and len(set(rows)) == len(rows)
    as_they_are = ArrayData(**arrays, num_clients=5, test_like_clients=True).federation.test
    assert as_they_are is not None and len(as_they_are) == 1000
    one_class = ArrayData(**arrays | {"train_targets": np.full(5000, 3)}, num_classes=10, test_like_clients=True).federation.test
    assert one_class is not None and one_class.targets.tolist() == [3] * 100
    for change, what in (
        ({"test_targets": test % 9}, "clients have samples of class 9, and the test set has none"),
        ({"train_targets": rng.random(5000), "test_targets": rng.random(1000)}, "ArrayData has the task regression"),
        ({"test_inputs": None, "test_targets": None}, "ArrayData has no test set: leave it out"),
    ):
        with one_line(ValueError, what):
            ArrayData(**arrays | change, test_like_clients=True).setup()


def test_medmnist_layout(tmp_path: Path) -> None:
    grey, colour = bytes_of(30, 28, 28), bytes_of(30, 28, 28, 3)
    labels = (np.arange(30) % 4).reshape(30, 1).astype(np.uint8)
    arrays = {
        "train_labels": labels,
        "val_images": grey[:5],
        "val_labels": labels[:5],
        "test_images": grey[:8],
        "test_labels": labels[:8],
    }
    federation = ArrayData(save(tmp_path / "grey.npz", train_images=grey, **arrays), num_clients=3).federation
    assert federation.task == "classification" and federation.num_classes == 4
    assert federation.val is not None and federation.test is not None and (len(federation.val), len(federation.test)) == (5, 8)
    assert np.array_equal(federation.train.inputs, grey[..., None]) and np.array_equal(federation.train.targets, labels[:, 0])
    path = save(tmp_path / "colour.npz", train_images=colour, train_labels=labels)
    augmented = ArrayData(path, num_clients=3, augmentation="crop-flip", mean=[0.5] * 3, std=[0.2] * 3).federation
    assert augmented.augment is not None and augmented.test is None
    inputs, _ = everything(augmented, augmented.train)
    np.testing.assert_allclose(inputs.permute(0, 2, 3, 1), (colour / 255 - 0.5) / 0.2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(6, 8, 8), (6, 8, 8, 5), (6, 4)])
def test_statistics_of_other_channels_are_refused(shape: tuple[int, ...]) -> None:
    """Three values would make a grey image three channels, without a word."""
    data = ArrayData(
        train_inputs=np.zeros(shape, np.uint8), train_targets=np.arange(6), mean=[0.5] * 3, std=[0.2] * 3, num_clients=2
    )
    channels = shape[-1] if len(shape) != 3 else 1
    with one_line(ValueError, rf"mean and std have 3 values, and samples of shape .* have {channels} channels"):
        everything(data.federation, data.federation.train)
    one = ArrayData(train_inputs=np.zeros(shape, np.uint8), train_targets=np.arange(6), mean=[0.5], std=[0.25], num_clients=2)
    assert everything(one.federation, one.federation.train)[0].unique().tolist() == [-2]


def test_task_and_classes_are_read_from_the_targets() -> None:
    rng = np.random.default_rng(0)
    features = rng.random((12, 5))
    multi_hot = rng.integers(0, 2, (12, 3))
    multi_hot[0] = 0
    for targets, options, task, num_classes, expected in (
        (np.arange(12) % 3, {}, "classification", 3, np.arange(12) % 3),
        (np.arange(12) % 3, {"num_classes": 5}, "classification", 5, np.arange(12) % 3),
        (np.arange(12) % 2 == 0, {}, "classification", 2, np.arange(12) % 2 == 0),
        (np.eye(4)[np.arange(12) % 4], {}, "classification", 4, np.arange(12) % 4),
        (np.eye(4)[np.arange(12) % 4], {"task": "multilabel"}, "multilabel", 4, np.eye(4)[np.arange(12) % 4]),
        (multi_hot, {}, "multilabel", 3, multi_hot),
        (features[:, 0], {}, "regression", 10, features[:, 0].astype(np.float32)),
        (features[:, :1], {"num_classes": 4}, "regression", 4, features[:, 0].astype(np.float32)),
        (np.arange(12.0) % 3, {"task": "classification"}, "classification", 3, np.arange(12) % 3),
        (np.arange(12), {"task": "regression"}, "regression", 10, np.arange(12)),
    ):
        data = ArrayData(train_inputs=features, train_targets=targets, num_clients=2, **options)
        assert (data.task, data.num_classes) == (task, num_classes)
        assert np.array_equal(data.federation.train.targets, expected)
        assert data.federation.train.targets.dtype == (torch.int64 if task == "classification" else torch.float32)


def test_a_test_label_unseen_in_training_counts() -> None:
    features = np.ones((4, 2))
    data = ArrayData(
        train_inputs=features, train_targets=[0, 1, 0, 1], test_inputs=features, test_targets=[0, 1, 2, 3], num_clients=1
    )
    assert data.num_classes == 4


def test_tensors_tokens_and_users() -> None:
    tokens = torch.randint(0, 50, (6, 9))
    data = ArrayData(
        train_inputs=tokens, train_targets=torch.arange(6) % 2, train_users=np.array(list("aabbbc")), partitioner=Natural()
    )
    assert data.federation.partition.sizes.tolist() == [2, 3, 1]
    assert torch.equal(everything(data.federation, data.federation.train)[0], tokens)


def test_a_memory_mapped_array_stays_on_disk(tmp_path: Path) -> None:
    images = bytes_of(20, 8, 8)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    options = {"train_inputs": mapped, "train_targets": np.arange(20) % 2, "num_clients": 2}
    federation = ArrayData(**options).federation
    assert isinstance(federation.train.inputs, np.memmap)
    inputs, _ = everything(federation, federation.train)
    np.testing.assert_allclose(inputs[:, 0], images / 255, rtol=1e-6)
    with one_line(ValueError, "cannot be computed of a memory-mapped array"):
        ArrayData(mean="auto", std="auto", **options).setup()


@pytest.mark.parametrize("kind", ["bytes", "floats", "features", "byte features"])
def test_automatic_normalisation(kind: str) -> None:
    images = bytes_of(40, 6, 6, 3)
    images[..., 2] = 7
    inputs = {"bytes": images, "floats": images / 255, "features": images[:, 0, 0] / 9, "byte features": images[:, 0, 0]}[kind]
    data = ArrayData(train_inputs=inputs, train_targets=np.arange(40) % 2, mean="auto", std="auto", num_clients=1)
    outputs, _ = everything(data.federation, data.federation.train)
    channels = outputs.transpose(0, 1).flatten(1)
    torch.testing.assert_close(channels.mean(1), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(channels.std(1, correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4, rtol=1e-4)


def test_labels_from_one_are_suspicious() -> None:
    with pytest.warns(UserWarning, match="no label is 0, and 3 classes are assumed"):
        assert ArrayData(train_inputs=np.ones((4, 2)), train_targets=[1, 2, 1, 2]).num_classes == 3


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"train_labels": [0, 1, 5]}, {"num_classes": 3}, "train_labels holds 5 at row 2: 3 classes are numbered 0 to 2"),
        ({"train_labels": [0, -1, 1]}, {}, "train_labels holds -1 at row 1"),
        ({"train_labels": [0, 1]}, {}, "train_images has 3 rows and train_labels has 2"),
        ({"train_labels": np.zeros((0,), int), "train_images": np.zeros((0, 4))}, {}, "train_images has 0 rows"),
        (
            {"train_images": [[1.0, 2], [3, np.nan], [5, 6]]},
            {},
            r"train_images has 1 NaN or infinite values, the first at index \(1, 1\)",
        ),
        ({"train_labels": [0.5, np.inf, 1]}, {}, r"train_labels has 1 NaN or infinite values, the first at index \(1\)"),
        ({"train_images": np.array([{}, 1, 2], object)}, {}, "train_images cannot be read: it holds Python objects"),
        ({"train_images": ["a", "b", "c"]}, {}, "train_images must be numbers; its type is <U1"),
        ({"train_labels": ["a", "b", "c"]}, {}, "train_labels must be numbers; its type is <U1"),
        ({"train_images": np.ones(3)}, {}, r"train_images must be images \[N, H, W\].*its shape is \(3,\)"),
        ({"train_images": np.ones((3, 3, 8, 8))}, {}, r"train_images has shape \(3, 3, 8, 8\), channels first: save it as"),
        ({"train_images": np.ones((3, 8, 8), np.int32)}, {}, "train_images has type int32: images must be uint8"),
        ({"train_labels": np.ones((3, 2, 2), int)}, {}, r"train_labels must be \[N\], \[N, 1\] or \[N, C\]"),
        ({"train_labels": [[0.2, 0.8]] * 3}, {}, "train_labels has 2 columns, so it should hold only 0 and 1"),
        ({"train_labels": [0.5, 1, 2]}, {"task": "classification"}, "train_labels holds fractions"),
        ({"train_labels": [[1, 1], [0, 1], [0, 1]]}, {"task": "classification"}, "train_labels has rows that are not one-hot"),
        ({"train_labels": [0, 1, 1]}, {"task": "multilabel"}, r"train_labels must be \[N, 2\] of 0 and 1"),
        ({"train_labels": [[1, 1], [0, 1], [0, 1]]}, {"task": "regression"}, "train_labels must be one value per sample"),
        ({"test_images": np.ones((3, 4))}, {}, "needs test_images and test_labels together; it has test_images, train_images"),
    ],
)
def test_bad_arrays_name_file_and_key(tmp_path: Path, arrays: dict[str, Any], options: dict[str, Any], message: str) -> None:
    path = save(tmp_path / "mine.npz", **{"train_images": np.ones((3, 4)), "train_labels": [0, 1, 1], **arrays})
    with one_line(ValueError, rf"mine\.npz.*{message}"):
        ArrayData(path, **options).setup()


def test_bad_array_files(tmp_path: Path) -> None:
    with one_line(FileNotFoundError, r"ArrayData found no \S*none.npz.*--data.path"):
        ArrayData(str(tmp_path / "none.npz")).setup()
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    with one_line(ValueError, "broken.npz cannot be read"):
        ArrayData(str(tmp_path / "broken.npz")).setup()
    np.save(tmp_path / "single.npy", np.ones(3))
    with one_line(ValueError, "single.npy holds a single array"):
        ArrayData(str(tmp_path / "single.npy")).setup()
    with one_line(ValueError, "other.npz has no train_images; it holds x"):
        ArrayData(save(tmp_path / "other.npz", x=[1])).setup()
    with one_line(ValueError, "either a path or arrays"):
        ArrayData()
    with one_line(ValueError, "mean and std come together"):
        ArrayData("x.npz", mean="auto")
    path = save(tmp_path / "good.npz", train_images=bytes_of(30, 8, 8), train_labels=np.arange(30) % 3)
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:400] + bytes(100) + whole[500:])
    with one_line(ValueError, "good.npz: train_images cannot be read: Bad CRC-32"):
        ArrayData(path).setup()


def test_more_clients_than_samples() -> None:
    data = ArrayData(train_inputs=np.ones((3, 2)), train_targets=[0, 1, 1], num_clients=4)
    with one_line(ValueError, "4 clients cannot share 3 samples"):
        data.setup()


def write_folders(root: Path, classes: tuple[str, ...] = ("cat", "airplane"), sizes: tuple[int, int, int] = (4, 2, 3)) -> None:
    for split, count in zip(("train", "valid", "test"), sizes, strict=True):
        for c, name in enumerate(classes):
            (root / split / name).mkdir(parents=True)
            for k in range(count):
                pixels = bytes_of(32, 32, 3, seed=100 * c + k + len(split))
                image = Image.fromarray(pixels)
                # Some images of CINIC-10 have one channel only.
                (image.convert("L") if k == 1 else image).save(root / split / name / f"{split}-{k}.png")


def test_image_folders(tmp_path: Path) -> None:
    write_folders(tmp_path)
    data = ImageFolders(str(tmp_path), val="valid", mean=[0.4, 0.5, 0.6], std=[0.2, 0.2, 0.2], num_clients=2)
    assert data.num_classes == 2
    federation = data.federation
    assert federation.class_names == ("airplane", "cat") and federation.val is not None and federation.test is not None
    assert [len(samples) for samples in (federation.train, federation.val, federation.test)] == [8, 4, 6]
    assert federation.train.targets.tolist() == [0] * 4 + [1] * 4
    for row, file in ((0, "airplane/train-0.png"), (1, "airplane/train-1.png"), (6, "cat/train-2.png")):
        expected = np.asarray(Image.open(tmp_path / "train" / file).convert("RGB"))
        assert np.array_equal(federation.train.inputs[row], expected)
    inputs, _ = everything(federation, federation.train)
    expected = (np.asarray(federation.train.inputs) / 255 - [0.4, 0.5, 0.6]) / 0.2
    np.testing.assert_allclose(inputs.permute(0, 2, 3, 1), expected, rtol=1e-4, atol=1e-5)


def test_a_class_subset_scaled_grey_and_nested(tmp_path: Path) -> None:
    write_folders(tmp_path, ("n02690373", "n04552348", "n02085782"))
    (tmp_path / "train" / "n04552348" / "images").mkdir()
    Image.fromarray(bytes_of(40, 64, 3)).save(tmp_path / "train" / "n04552348" / "images" / "a.JPEG")
    (tmp_path / "train" / "n04552348" / "boxes.txt").write_text("not an image")
    data = ImageFolders(str(tmp_path), test=None, classes=["n04552348", "n02690373"], image_size=16, grey=True, num_clients=2)
    assert data.federation.class_names == ("n04552348", "n02690373") and data.federation.test is None
    assert data.federation.train.inputs.shape == (9, 16, 16, 1)
    assert data.federation.train.targets.tolist() == [0] * 5 + [1] * 4


def test_decoded_images_are_used_again_until_files_change(tmp_path: Path) -> None:
    write_folders(tmp_path)
    cache, file = tmp_path / "elsewhere", tmp_path / "train" / "cat" / "train-0.png"

    def load() -> Tensor:
        inputs = ImageFolders(str(tmp_path), cache_dir=str(cache), num_clients=2).federation.train.inputs
        assert isinstance(inputs, Tensor)
        return inputs

    first = load()
    assert len(list(cache.glob("*.npy"))) == 2 and not (tmp_path / "decoded").exists()
    assert torch.equal(load(), first) and len(list(cache.glob("*.npy"))) == 2
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(file)
    assert torch.equal(load()[4], torch.zeros(32, 32, 3, dtype=torch.uint8)) and len(list(cache.glob("*.npy"))) == 3


def test_bad_image_folders(tmp_path: Path) -> None:
    missing = ImageFolders(str(tmp_path / "none"))
    with one_line(FileNotFoundError, r"ImageFolders found no \S*none/train .*--data.data_dir"):
        missing.setup()
    (tmp_path / "train").mkdir()
    with one_line(ValueError, r"train has no class folders"):
        ImageFolders(str(tmp_path)).setup()
    write_folders(tmp_path)
    with one_line(FileNotFoundError, r"no \S*train/dog"):
        ImageFolders(str(tmp_path), classes=["cat", "dog"]).setup()
    with one_line(ValueError, "names some folder twice: cat"):
        ImageFolders(classes=["cat", "dog", "cat"])
    with one_line(ValueError, "image_size"):
        ImageFolders(image_size=0)
    broken = tmp_path / "train" / "cat" / "train-3.png"
    whole = broken.read_bytes()
    for content in (whole[:-200], b"", b"text"):
        broken.write_bytes(content)
        with one_line(ValueError, r"cat/train-3.png cannot be read"):
            ImageFolders(str(tmp_path)).setup()
    Image.fromarray(bytes_of(9, 8, 3)).save(broken)
    with one_line(ValueError, r"cat/train-3.png is 8x9, unlike the first image of 32x32"):
        ImageFolders(str(tmp_path)).setup()
    for file in (tmp_path / "test" / "cat").iterdir():
        file.unlink()
    broken.write_bytes(whole)
    with one_line(ValueError, r"test/cat has no images \(.png"):
        ImageFolders(str(tmp_path)).setup()


def write_ham(root: Path) -> list[dict[str, str]]:
    """Lesions of one to three images in the two folders of the release, and its metadata, which has more columns."""
    rng, rows = np.random.default_rng(0), []
    for part in (1, 2):
        (root / f"HAM10000_images_part_{part}").mkdir(parents=True)
    for dx in HAM10000.class_names:
        for lesion in range(14):
            for _ in range(1 + lesion % 3):
                number = len(rows)
                image = f"ISIC_{24306 + number:07d}"
                lesion_id = f"HAM_{dx}{lesion:04d}"
                row = {"lesion_id": lesion_id, "image_id": image, "dx": dx, "dx_type": "histo", "age": "", "sex": "male"}
                rows.append({**row, "localization": "scalp"})
                pixels = np.full((45, 60, 3), number % 250, np.uint8)
                Image.fromarray(pixels).save(root / f"HAM10000_images_part_{1 + number % 2}" / f"{image}.jpg", quality=95)
    rows = [rows[i] for i in rng.permutation(len(rows))]
    with (root / "HAM10000_metadata.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return rows


def test_ham10000(tmp_path: Path) -> None:
    rows = {row["image_id"]: row for row in write_ham(tmp_path)}
    data = HAM10000(str(tmp_path), test_per_class=6, num_clients=3)
    federation = data.federation
    assert federation.test is not None and federation.train.inputs.shape[1:] == (56, 56, 3)
    assert federation.test.targets.bincount().tolist() == [6] * 7 and len(federation.train) == len(rows) - 42
    parts = {part: [row["image_id"] for row in own] for part, own in data._parts.items()}
    assert sorted(parts["train"] + parts["test"]) == sorted(rows)
    lesions = {part: {rows[image]["lesion_id"] for image in images} for part, images in parts.items()}
    assert not lesions["train"] & lesions["test"]
    for part, samples in (("train", federation.train), ("test", federation.test)):
        greys = [(int(image[5:]) - 24306) % 250 for image in parts[part]]
        assert np.abs(np.asarray(samples.inputs).mean((1, 2, 3)) - greys).max() < 1
        assert [HAM10000.class_names[t] for t in samples.targets] == [rows[image]["dx"] for image in parts[part]]
    again = HAM10000(str(tmp_path), test_per_class=6, num_clients=3, partition_seed=5)
    assert [row["image_id"] for row in again._parts["test"]] == parts["test"], "the test set must not depend on a seed"
    assert federation.augment is not None
    federation.load(federation.train, torch.arange(5), CPU, keys=np.arange(5, dtype=np.uint64))


def test_ham10000_bad(tmp_path: Path) -> None:
    with one_line(FileNotFoundError, r"HAM10000 found no .*HAM10000_metadata.csv.*dataverse|DBW86T"):
        HAM10000(str(tmp_path)).setup()
    rows = write_ham(tmp_path)
    with one_line(ValueError, r"27 images of 14 lesions with dx akiec do not make a test set of 30"):
        HAM10000(str(tmp_path)).setup()
    few = {"test_per_class": 6}
    gone = next(tmp_path.rglob(f"{rows[0]['image_id']}.jpg"))
    gone.unlink()
    with one_line(FileNotFoundError, rf"found no \S*{gone.name}"):
        HAM10000(str(tmp_path), **few).setup()
    metadata = tmp_path / "HAM10000_metadata.csv"
    metadata.write_text(metadata.read_text().replace(",mel,", ",melanoma,", 1))
    with one_line(ValueError, r"HAM10000_metadata.csv cannot be read.*line \d+ lacks"):
        HAM10000(str(tmp_path), **few).setup()
    with one_line(ValueError, "test_per_class must be at least 1"):
        HAM10000(test_per_class=0)


def leaf(users: dict[str, tuple[np.ndarray, list[int]]]) -> str:
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(labels) for _, labels in users.values()],
            "user_data": {
                user: {"x": (images / 255).reshape(-1, 784).tolist(), "y": labels} for user, (images, labels) in users.items()
            },
        }
    )


def write_leaf(root: Path, *parts: str) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Two files for each part, with users called f0001_41 and so on, dealt out in no order."""
    users = {f"f{k:04d}_{k % 7}": (bytes_of(10 + k, 28, 28, seed=k), [(k * 5 + j) % 62 for j in range(10 + k)]) for k in range(6)}
    for part in parts:
        (root / part).mkdir(parents=True)
        cut = {
            u: (x[:3], y[:3]) if part == "test" else (x[3:], y[3:]) if part == "train" else (x, y) for u, (x, y) in users.items()
        }
        names = list(cut)
        for number, own in enumerate((names[1::2], names[0::2])):
            (root / part / f"{part}_{number}_niid_0_keep_0.json").write_text(leaf({user: cut[user] for user in own}))
    return users


def test_femnist_train_and_test(tmp_path: Path) -> None:
    users = write_leaf(tmp_path, "all_data", "train", "test")
    federation = FEMNIST(str(tmp_path)).federation
    assert federation.num_clients == 6 and federation.num_classes == 62 and federation.test is not None
    assert federation.partition.sizes.tolist() == [len(labels) - 3 for _, labels in users.values()]
    for k, (images, labels) in enumerate(users.values()):
        own = torch.from_numpy(federation.partition.client(k))
        assert np.array_equal(federation.train.gather(own), images[3:, ..., None])
        assert federation.train.targets[own].tolist() == labels[3:]
    assert np.array_equal(federation.test.inputs, np.concatenate([images[:3, ..., None] for images, _ in users.values()]))
    inputs, _ = everything(federation, federation.test)
    assert inputs.shape == (18, 1, 28, 28) and inputs.min() >= 0 and inputs.max() <= 1


def test_femnist_all_data(tmp_path: Path) -> None:
    users = write_leaf(tmp_path, "all_data")
    federation = FEMNIST(str(tmp_path), test_fraction=0.2, mean=0.9, std=0.2).federation
    assert federation.test is not None and federation.train.users is not None
    assert federation.partition.sizes.tolist() == [len(y) - len(y) // 5 for _, y in users.values()]
    expected = np.concatenate([images[len(images) - len(images) // 5 :, ..., None] for images, _ in users.values()])
    assert np.array_equal(federation.test.inputs, expected)


def test_femnist_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_leaf(tmp_path, "train", "test")
    hash = FEMNIST(str(tmp_path)).federation.partition.hash
    with monkeypatch.context() as patch:
        patch.setattr(flcog.datamodules.femnist, "_read_writers", lambda path: pytest.fail("the JSON was read again"))
        assert FEMNIST(str(tmp_path)).federation.partition.hash == hash
    (tmp_path / "train" / "train_0_niid_0_keep_0.json").unlink()
    assert FEMNIST(str(tmp_path)).federation.num_clients == 3
    assert not list(tmp_path.glob("femnist.*.npz"))


def test_femnist_bad(tmp_path: Path) -> None:
    with one_line(FileNotFoundError, r"FEMNIST found no \S*train/\*.json, .*preprocess.sh -s niid"):
        FEMNIST(str(tmp_path)).setup()
    write_leaf(tmp_path, "train", "test")
    with one_line(ValueError, r"FEMNIST with num_classes 10: train has label \d+ at row \d+: 10 classes are numbered 0 to 9"):
        FEMNIST(str(tmp_path), num_classes=10).setup()
    with one_line(ValueError, "test_fraction"):
        FEMNIST(test_fraction=0.0)
    file = tmp_path / "test" / "test_1_niid_0_keep_0.json"
    whole = file.read_text()
    for text in (
        whole[:-9],
        whole.replace('"y": [', '"y": [1, '),
        whole.replace("user_data", "users_data"),
        whole.replace("0.", "7."),
    ):
        file.write_text(text)
        with one_line(ValueError, f"{file.name} cannot be read"):
            FEMNIST(str(tmp_path)).setup()


NEWS = [
    (
        3,
        "Wall St. Bears Claw Back Into the Black (Reuters)",
        "Reuters - Short-sellers, Wall Street's dwindling\\band of ultra-cynics.",
    ),
    (1, "Oil prices, oil", 'A "quoted" word; the oil.'),
    (2, "Goal", "The the THE"),
    (4, "CPU", ""),
] * 3


def write_news(root: Path, header: bool = False) -> None:
    for name in ("train.csv", "test.csv"):
        with (root / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows(
                [("Class Index", "Title", "Description")] * header + NEWS + [(1, "unseen", "words")] * (name == "test.csv")
            )


@pytest.mark.parametrize("header", [False, True])
def test_ag_news(tmp_path: Path, header: bool) -> None:
    write_news(tmp_path, header)
    federation = AGNews(str(tmp_path), max_length=12, num_clients=2).federation
    assert federation.test is not None and federation.class_names is not None
    assert federation.train.targets.tolist() == [2, 0, 1, 3] * 3 and federation.test.targets[-1] == 0
    inputs, _ = everything(federation, federation.train)
    assert inputs.shape == (12, 12) and inputs.dtype == torch.int32
    words = Counter(word for _, title, text in NEWS for word in ag_news.tokenize(f"{title} {text}".replace("\\", " ")))
    order = sorted(words, key=lambda word: (-words[word], word))
    assert order[0] == "the" and inputs[2].tolist() == [2 + order.index("goal"), 2, 2, 2] + [0] * 8
    assert inputs[3].tolist() == [2 + order.index("cpu")] + [0] * 11
    assert federation.test.inputs[-1].tolist() == [1, 1] + [0] * 10


def test_ag_news_words() -> None:
    assert ag_news.tokenize("Wall St. Bears' #39;s \u00fcber-cool") == [
        "wall",
        "st",
        ".",
        "bears",
        "'",
        "#",
        "39",
        ";",
        "s",
        "über",
        "-",
        "cool",
    ]
    assert ag_news.vocabulary([["b", "a", "c"], ["c"]], size=4) == {"c": 2, "a": 3}


def test_ag_news_as_in_feddisco(tmp_path: Path) -> None:
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows((1 + k % 4, f"title {k}", "text") for k in range(400))
    (tmp_path / "test.csv").write_bytes((tmp_path / "train.csv").read_bytes())
    federation = AGNews(str(tmp_path), num_clients=5, partitioner=BiasedUnbiased(4, 1, 2)).federation
    assert [int((federation.label_counts(k) > 0).sum()) for k in range(5)] == [2, 2, 2, 2, 4]


def test_ag_news_token_arrays(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 40, (8, 20)).astype(np.int32)
    arrays = {
        "tokens_train": tokens,
        "y_train": np.arange(8) % 4,
        "len_train": np.full(8, 20),
        "tokens_test": tokens[:4],
        "y_test": np.arange(4),
    }
    path = save(tmp_path / "tokens.npz", **arrays)
    federation = AGNews(tokens=path, vocab_size=40, max_length=15, num_clients=2).federation
    assert np.array_equal(federation.train.inputs, tokens[:, :15])
    with one_line(ValueError, r"tokens.npz: tokens_train has id 39, vocab_size is 39"):
        AGNews(tokens=path, vocab_size=39).setup()
    wrong = save(tmp_path / "wrong.npz", **{**arrays, "y_test": np.arange(1, 5)})
    with one_line(ValueError, r"wrong.npz: y_test has label 4"):
        AGNews(tokens=wrong).setup()
    part = save(tmp_path / "part.npz", tokens_train=tokens)
    with one_line(ValueError, r"part.npz cannot be read.*y_train"):
        AGNews(tokens=part).setup()


def test_ag_news_bad(tmp_path: Path) -> None:
    with one_line(FileNotFoundError, r"AGNews found no .*train.csv.*test.csv.*--data.tokens"):
        AGNews(str(tmp_path)).setup()
    write_news(tmp_path)
    with (tmp_path / "test.csv").open("a") as file:
        file.write('"7","a","b"\n')
    with one_line(ValueError, r"test.csv cannot be read.*row 14 is not a topic"):
        AGNews(str(tmp_path)).setup()
    with one_line(ValueError, "vocab_size must be at least 3"):
        AGNews(vocab_size=2)


def write_posts(root: Path) -> dict[str, np.ndarray]:
    rng, tables = np.random.default_rng(0), {}
    for name, rows in (("Training/Features_Variant_2.csv", 50), ("Testing/Features_TestSet.csv", 20)):
        table = np.round(rng.random((rows, 54)) * 1e5, 3)
        table[:, 37], table[:, -1] = 0, rng.poisson(3, rows)  # "post promotion status" is always 0
        (root / "Dataset" / name).parent.mkdir(parents=True, exist_ok=True)
        np.savetxt(root / "Dataset" / name, table, delimiter=",", fmt="%.10g")
        tables[name] = table
    return tables


def test_facebook_comments(tmp_path: Path) -> None:
    tables = write_posts(tmp_path)
    train, test = tables.values()
    federation = FacebookComments(str(tmp_path), variant=2, num_clients=3).federation
    assert federation.task == "regression" and federation.num_classes == 10 and federation.test is not None
    np.testing.assert_allclose(federation.train.targets, np.log1p(train[:, -1]), rtol=1e-6)
    inputs, _ = everything(federation, federation.test)
    std = train[:, :-1].std(0)
    std[37] = 1
    np.testing.assert_allclose(inputs, (test[:, :-1] - train[:, :-1].mean(0)) / std, rtol=1e-3, atol=1e-4)
    raw = FacebookComments(str(tmp_path), variant=2, log_target=False, num_classes=4, num_clients=3).federation
    np.testing.assert_array_equal(raw.train.targets, train[:, -1])
    assert sum(raw.label_counts(k).sum() for k in range(3)) == 50 and len(raw.label_counts(0)) == 4


def test_facebook_comments_bad(tmp_path: Path) -> None:
    def load() -> Any:
        return FacebookComments(str(tmp_path), variant=2, num_clients=3).federation

    with one_line(FileNotFoundError, r"FacebookComments found no \S*Features_Variant_2.csv.*dataset/363"):
        load()
    write_posts(tmp_path)
    file = tmp_path / "Dataset" / "Training" / "Features_Variant_2.csv"
    lines = file.read_text().splitlines()
    for broken, message in (
        ([",".join(line.split(",")[1:]) for line in lines], "has 53 columns, not 53 features and the target"),
        (
            [lines[0].replace(lines[0].split(",")[2], "nan"), *lines[1:]],
            r"has 1 NaN or infinite values, the first at index \(0, 2\)",
        ),
        ([*lines[:4], lines[4].rsplit(",", 1)[0] + ",-2", *lines[5:]], "has a negative number of comments in row 5"),
        ([*lines, "a,b"], "cannot be read"),
    ):
        file.write_text("\n".join(broken))
        with one_line(ValueError, f"Features_Variant_2.csv {message}"):
            load()
    with one_line(ValueError, "variant must be from 1 to 5"):
        FacebookComments(variant=6)
    with one_line(ValueError, "num_classes must be at least 2"):
        FacebookComments(num_classes=1)


def write_dsprites(root: Path) -> np.ndarray:
    """All six factors with fewer scales and orientations; each image is marked with its number."""
    grid = np.stack(np.meshgrid([0], range(3), [0], range(2), range(0, 32, 4), range(0, 32, 4), indexing="ij"), -1).reshape(-1, 6)
    images = np.zeros((len(grid), 64, 64), np.uint8)
    images.reshape(len(grid), -1)[:, :10] = np.arange(len(grid))[:, None] >> np.arange(10) & 1
    np.savez_compressed(
        root / dsprites._FILE,
        metadata=np.array({"title": "dSprites dataset"}, dtype=object),
        imgs=images,
        latents_classes=grid.astype(np.int64),
        latents_values=grid.astype(float),
    )
    return grid


def test_dsprites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsprites, "_CHUNK", 37)
    grid = write_dsprites(tmp_path)
    federation = DSprites(str(tmp_path)).federation
    assert federation.num_clients == 12 and federation.test is not None
    own_size = len(grid) // 12
    assert federation.partition.sizes.tolist() == [own_size - round(own_size / 10)] * 12
    numbers = []
    for samples in (federation.train, federation.test):
        inputs, targets = everything(federation, samples)
        assert inputs.shape[1:] == (1, 64, 64) and set(inputs.unique().tolist()) == {0, 1}
        number = (inputs.flatten(1)[:, :10] * 2.0 ** torch.arange(10)).sum(1).long()
        assert np.array_equal(targets, grid[number, 1])
        numbers.append(number.numpy())
    assert sorted(np.concatenate(numbers)) == list(range(len(grid)))
    for k in range(12):
        shape, scale_free = (
            grid[numbers[0][federation.partition.client(k)], 1],
            grid[numbers[0][federation.partition.client(k)], 4:] >= 16,
        )
        assert (shape == k // 4).all() and (scale_free == [k % 2, k // 2 % 2]).all()


def test_dsprites_subset(tmp_path: Path) -> None:
    write_dsprites(tmp_path)
    federation = DSprites(str(tmp_path), samples_per_client=9).federation
    assert federation.partition.sizes.tolist() == [9] * 12 and federation.test is not None and len(federation.test) == 12
    with one_line(ValueError, r"samples_per_client is 99, and client 0 has \d+"):
        DSprites(str(tmp_path), samples_per_client=99).setup()
    assert DSprites(str(tmp_path), num_clients=4, partitioner=Dirichlet(1.0)).federation.num_clients == 4


def test_dsprites_bad(tmp_path: Path) -> None:
    with one_line(FileNotFoundError, rf"DSprites found no \S*{dsprites._FILE}.*download https"):
        DSprites(str(tmp_path)).setup()
    write_dsprites(tmp_path)
    file = tmp_path / dsprites._FILE
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with one_line(ValueError, rf"{dsprites._FILE} cannot be read"):
        DSprites(str(tmp_path)).setup()
    np.savez(file, imgs=np.zeros((2, 32, 32), np.uint8), latents_classes=np.zeros((2, 6), int))
    with one_line(ValueError, r"imgs has shape \(2, 32, 32\)"):
        DSprites(str(tmp_path), samples_per_client=None).setup()
    with one_line(ValueError, "samples_per_client must be at least 1"):
        DSprites(samples_per_client=0)


def gradient(problem: Quadratics, k: int, x: Tensor) -> Tensor:
    """Of client k's loss, by autograd through the model that trains on it."""
    federation = problem.federation
    client = LeastSquares(torch.nn.Linear(1, problem.dimension, bias=False, dtype=torch.float64))
    with torch.no_grad():
        client.model.weight.copy_(x[:, None])  # type: ignore[union-attr, operator]
    torch.set_default_dtype(torch.float64)
    inputs, targets = federation.load(federation.train, torch.from_numpy(federation.partition.client(k)), CPU)
    loss = client.per_example_loss(client(inputs), targets).mean()
    return torch.autograd.grad(loss, client.parameters())[0].squeeze(1)


@pytest.mark.parametrize("shuffled", [0.0, 0.3, 1.0])
def test_quadratics_in_closed_form(shuffled: float) -> None:
    problem = Quadratics(
        zeta=30.0, sigma=5.0, dimension=4, samples_per_client=20, num_clients=6, partitioner=Shuffled(shuffled, Natural())
    )
    gradients = torch.stack([gradient(problem, k, problem.optimum) for k in range(6)])
    torch.testing.assert_close(gradients.mean(0), torch.zeros(4, dtype=torch.float64), atol=1e-9, rtol=0)
    assert problem.dissimilarity == pytest.approx(gradients.square().sum(1).mean().item())
    for k in range(6):
        assert gradient(problem, k, problem.client_optima[k]).norm() < 1e-9
        difference = gradient(problem, k, problem.optimum + 1) - gradients[k]
        torch.testing.assert_close(difference, problem.curvatures[k].expand(4))
    assert problem.smoothness_max == problem.curvatures.max() and problem.smoothness_mean == pytest.approx(
        problem.curvatures.mean().item()
    )
    away = problem.optimum + torch.tensor([0.1, -0.2, 0.3, 0])
    rise = problem.smoothness_mean / 2 * (away - problem.optimum).square().sum()
    torch.testing.assert_close(problem.objective(away) - problem.objective(problem.optimum), rise)


def test_quadratics_follow_the_paper() -> None:
    problem = Quadratics(zeta=50.0, sigma=20.0, num_clients=40, samples_per_client=200)
    federation = problem.federation
    assert federation.train.inputs.shape == (8000, 1) and federation.train.targets.shape == (8000, 25)
    assert problem.curvatures.tolist() == [i**2 for i in range(1, 41)]
    b = federation.train.targets.double().view(40, 200, 25)
    i = torch.arange(1, 41, dtype=torch.float64)
    within = b.std(1).square().mean(1).sqrt() * i * 25
    between = b.mean(1).square().mean(1).sqrt() * i * 25
    assert (within / 20 - 1).abs().max() < 0.1 and abs(between.square().mean().sqrt() / 50 - 1) < 0.1
    assert problem.noise == pytest.approx(20**2 / 25, rel=0.05)
    assert problem.dissimilarity == pytest.approx(50**2 / 25, rel=0.2)


def test_shuffling_quadratics_reduces_dissimilarity() -> None:
    problems = [Quadratics(sigma=0.0, num_clients=10, partitioner=Shuffled(p, Natural())) for p in (0.0, 0.5, 1.0)]
    own, half, mixed = (problem.dissimilarity for problem in problems)
    # The lemma of Fedssyn, (1 - p)^2, holds in the mean over the draws of who swaps what.
    assert half < 0.45 * own and mixed < 0.1 * own
    assert problems[0].noise < 1e-9 < problems[1].noise
    torch.testing.assert_close(problems[0].optimum, problems[2].optimum)
    # Curvatures even out: L_p <= (1 - p) L_max + p L_avg.
    assert problems[1].smoothness_max < problems[0].smoothness_max


def test_quadratics_are_fixed_by_their_seed() -> None:
    first, again, other = (Quadratics(seed=seed, num_clients=3).federation.train.targets for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    for options in ({"zeta": -1.0}, {"sigma": -1.0}, {"dimension": 0}, {"samples_per_client": 0}):
        with one_line(ValueError, "must be"):
            Quadratics(**options)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_one_full_step_a_round_finds_the_optimum(tmp_path: Path, executor: Literal["loop", "vmap"]) -> None:
    problem = Quadratics(zeta=50.0, num_clients=4, dimension=3, samples_per_client=5, batch_size=5)
    trainer = FederatedTrainer(
        rounds=12, local_steps=1, executor=executor, logger=False, accelerator="cpu", default_root_dir=str(tmp_path)
    )
    step = 1 / problem.smoothness_mean
    client = LeastSquares(torch.nn.Linear(1, 3, bias=False), lambda parameters: torch.optim.SGD(parameters, lr=step))
    trainer.fit(client, problem)
    (weight,) = trainer.params.values()
    torch.testing.assert_close(weight.squeeze(1).double(), problem.optimum, atol=1e-5, rtol=1e-5)


def test_least_squares_scores() -> None:
    client = LeastSquares(torch.nn.Linear(1, 2, bias=False))
    outputs, targets = torch.tensor([[3.0, 4.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert client.per_example_loss(outputs, targets).tolist() == [12.5, 0]
    assert client.per_example_score(outputs, targets).tolist() == [5, 0]
    metrics = client.metrics(1)
    metrics.update(outputs, targets)
    assert metrics.compute()["mse"] == 25 / 4


def test_constant_columns_keep_their_scale() -> None:
    mean, std = standardisation(torch.tensor([[1.0, 5], [3, 5]]))
    assert mean == (2, 5) and std == (1, 1)
