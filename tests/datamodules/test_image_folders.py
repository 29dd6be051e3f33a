"""ImageFolders: classes, sizes, and the reuse of decoded images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from datamodules.common import bytes_of, everything, one_line
from flcog.datamodules import ImageFolders


def write_folders(root: Path, classes: tuple[str, ...] = ("cat", "airplane"), sizes: tuple[int, int, int] = (4, 2, 3)) -> None:
    for split, count in zip(("train", "valid", "test"), sizes, strict=True):
        for c, name in enumerate(classes):
            (root / split / name).mkdir(parents=True)
            for k in range(count):
                pixels = bytes_of(32, 32, 3, seed=100 * c + k + len(split))
                image = Image.fromarray(pixels)
                # As in CINIC-10, some images have only one channel.
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


def test_a_named_class_may_have_no_images_here(tmp_path: Path) -> None:
    """A node of a deployment without images of a class gives the other classes the labels that they have on other nodes."""
    write_folders(tmp_path)
    for split in ("train", "test"):
        (tmp_path / split / "bird").mkdir()
    with one_line(ValueError, r"train/bird has no images"):
        ImageFolders(str(tmp_path), num_clients=2).setup()
    federation = ImageFolders(str(tmp_path), classes=["airplane", "bird", "cat"], num_clients=2).federation
    assert federation.num_classes == 3 and federation.train.targets.tolist() == [0] * 4 + [2] * 4
    with one_line(ValueError, r"train has no images"):
        ImageFolders(str(tmp_path), classes=["bird"], num_clients=2).setup()


def test_a_class_subset_scaled_grey_and_nested(tmp_path: Path) -> None:
    write_folders(tmp_path, ("n02690373", "n04552348", "n02085782"))
    (tmp_path / "train" / "n04552348" / "images").mkdir()
    Image.fromarray(bytes_of(40, 64, 3)).save(tmp_path / "train" / "n04552348" / "images" / "a.JPEG")
    (tmp_path / "train" / "n04552348" / "boxes.txt").write_text("not an image")
    data = ImageFolders(str(tmp_path), test=None, classes=["n04552348", "n02690373"], image_size=16, grey=True, num_clients=2)
    assert data.federation.class_names == ("n04552348", "n02690373") and data.federation.test is None
    assert data.federation.train.inputs.shape == (9, 16, 16, 1)
    assert data.federation.train.targets.tolist() == [0] * 5 + [1] * 4


def test_decoded_images_are_used_again(tmp_path: Path) -> None:
    write_folders(tmp_path)
    cache = tmp_path / "elsewhere"

    def load(**options: Any) -> Tensor:
        inputs = ImageFolders(str(tmp_path), cache_dir=str(cache), num_clients=2, **options).federation.train.inputs
        assert isinstance(inputs, Tensor)
        return inputs

    first = load()
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "train" / "cat" / "train-0.png")
    assert torch.equal(load(), first) and len(list(cache.glob("*.rows"))) == 2 and not (tmp_path / "decoded").exists()
    assert torch.equal(load(classes=["cat"], test=None), torch.cat([torch.zeros(1, 32, 32, 3, dtype=torch.uint8), first[5:]]))


def test_bad_image_folders(tmp_path: Path) -> None:
    write_folders(tmp_path)
    with one_line(FileNotFoundError, r"no \S*train/dog"):
        ImageFolders(str(tmp_path), classes=["cat", "dog"]).setup()
    broken = tmp_path / "train" / "cat" / "train-3.png"
    for content in (broken.read_bytes()[:-200], b"", b"text"):
        broken.write_bytes(content)
        with one_line(ValueError, r"cat/train-3.png cannot be read"):
            ImageFolders(str(tmp_path)).setup()


def test_greys_of_16_bits_keep_their_range(tmp_path: Path) -> None:
    """Pillow alone makes white of all values above 255. A PGM file has a white of its own, here 4095."""
    greys = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    folder = tmp_path / "train" / "cat"
    folder.mkdir(parents=True)
    for name in ("a.png", "b.tif"):
        Image.fromarray(greys).save(folder / name)
    (folder / "c.pgm").write_bytes(b"P5 8 8 4095\n" + (greys // 16).astype(">u2").tobytes())
    Image.fromarray((greys // 257).astype(np.uint8)).save(folder / "d.png")

    def load(grey: bool) -> np.ndarray:
        return np.asarray(ImageFolders(str(tmp_path), test=None, grey=grey, num_clients=1).load().train.inputs, dtype=float)

    for decoded in (load(grey=True), load(grey=False)):
        assert np.abs(decoded - greys[..., None] / 257).max(axis=(1, 2, 3)).tolist() == pytest.approx([0.5, 0.5, 0.5, 1], abs=0.1)
    for kind in (np.float32, np.int32):
        Image.fromarray((greys / 65535).astype(kind)).save(folder / "e.tif")
        with one_line(ValueError, r"cat/e.tif cannot be read, .* its pixels are of mode [FI], .*: save it with 8 or 16 bits"):
            load(grey=True)
