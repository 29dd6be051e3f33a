"""MNIST and FashionMNIST on small files in their format."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torchvision

from datamodules.common import bytes_of, everything, one_line
from flcog.datamodules import MNIST, FashionMNIST


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


def of(source: type) -> type[MNIST]:
    """MNIST by another class than torchvision's."""
    return type("SmallMNIST", (MNIST,), {"_source": source})


def test_mnist_unpacks_archives_that_are_there(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw)
    resources = []
    for file in sorted(raw.iterdir()):
        archive = raw / f"{file.name}.gz"
        archive.write_bytes(gzip.compress(file.read_bytes()))
        resources.append((archive.name, hashlib.md5(archive.read_bytes()).hexdigest()))
        file.unlink()
    source = type("MNIST", (torchvision.datasets.MNIST,), {"resources": resources})
    for options in ({}, {"download": True}):
        assert len(of(source)(str(tmp_path), num_clients=2, **options).federation.train) == 40


def test_mnist_broken(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw)
    labels = raw / "train-labels-idx1-ubyte"
    whole = labels.read_bytes()
    for broken in (whole[:-1], whole[:3], b"not an idx file at all"):
        labels.write_bytes(broken)
        with one_line(ValueError, "train-labels-idx1-ubyte cannot be read"):
            MNIST(str(tmp_path)).setup()
    with one_line(ValueError, "samples_per_class"):
        MNIST(samples_per_class=0)


def test_a_download_that_fails_is_one_line(tmp_path: Path) -> None:
    class Offline:
        mirrors = ("https://a.mirror",)

        def __init__(self, root: str, download: bool) -> None:
            raise RuntimeError("Error\n downloading")

    with one_line(
        ValueError,
        r"MNIST could not be downloaded to .*RuntimeError: Error downloading.*put the .gz files of https://a.mirror there",
    ):
        of(Offline)(str(tmp_path), download=True).prepare_data()
