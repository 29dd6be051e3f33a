"""CIFAR-10 and CIFAR-100 on small files in their format."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision

from datamodules.common import bytes_of, everything, one_line, parse
from flcog.datamodules import CIFAR10, CIFAR100


def write_cifar(root: Path, cls: type[CIFAR10]) -> tuple[type[CIFAR10], dict[str, np.ndarray]]:
    """Write the training and test batches with 20 images each. Returns a data module that knows the checksums of these files."""
    source, num_classes = getattr(torchvision.datasets, cls.__name__), cls.num_classes
    folder, key, arrays, known = root / source.base_folder, source.meta["key"], {}, dict[str, Any]()
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
        known[attribute] = listing
    md5 = write(source.meta["filename"], {key: [f"class {c}" for c in range(num_classes)]})
    known["meta"] = {**source.meta, "md5": md5}
    return type(f"Small{cls.__name__}", (cls,), {"_source": type(cls.__name__, (source,), known)}), arrays


@pytest.mark.parametrize("cls", [CIFAR10, CIFAR100])
def test_cifar(tmp_path: Path, cls: type[CIFAR10]) -> None:
    cls, arrays = write_cifar(tmp_path, cls)
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
def test_cifar_enlarged(tmp_path: Path, cls: type[CIFAR10]) -> None:
    small, _ = write_cifar(tmp_path, cls)
    data = [small(data_dir=str(tmp_path), num_clients=2, **options) for options in ({}, {"image_size": None}, {"image_size": 48})]
    plain, same, large = (module.federation for module in data)
    assert large.train.inputs.shape[1:] == (32, 32, 3)
    # Images are augmented at the size of the files, and enlarged afterwards.
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


def test_cifar_missing_and_broken(tmp_path: Path) -> None:
    url = r"https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    with one_line(FileNotFoundError, rf"CIFAR10 found no .*data_batch_1.* and 4 more.*download true.*{url}"):
        CIFAR10(str(tmp_path)).setup()
    written, _ = write_cifar(tmp_path, CIFAR10)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"broken")
    with one_line(ValueError, r"cifar-10-batches-py cannot be read, pass --data.download true"):
        written(str(tmp_path)).setup()
    with one_line(ValueError, "val_fraction"):
        CIFAR10(val_fraction=1.0)
