"""HAM10000 on small files in its format."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from datamodules.common import CPU, one_line
from flcog.datamodules import HAM10000


def write_ham(root: Path) -> list[dict[str, str]]:
    """Write lesions with one to three images to the release's two folders, and metadata with all columns. Returns the metadata's rows."""
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


@pytest.mark.parametrize("separator", ["\t", ","])
def test_metadata_as_dataverse_names_them(separator: str, tmp_path: Path) -> None:
    """Dataverse converts the release's table to tabs, with quoted texts, unless it is asked for the original format."""
    rows = write_ham(tmp_path)
    expected = HAM10000(str(tmp_path), test_per_class=6)._parts
    (tmp_path / "HAM10000_metadata.csv").unlink()
    with (tmp_path / "HAM10000_metadata.tab").open("w", newline="") as file:
        file.write(separator.join(rows[0]) + "\n")
        csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL).writerows(row.values() for row in rows)
    assert HAM10000(str(tmp_path), test_per_class=6)._parts == expected


def test_ham10000_by_image(tmp_path: Path) -> None:
    """A lesion's images may then be in both the training and the test set. Each variant has its own file of decoded images."""
    rows = {row["image_id"]: row for row in write_ham(tmp_path)}
    by_lesion = HAM10000(str(tmp_path), test_per_class=6, num_clients=3)
    before = np.asarray(by_lesion.federation.test.inputs).copy()  # type: ignore[union-attr]
    data = HAM10000(str(tmp_path), test_per_class=6, num_clients=3, test_by="image")
    assert data.federation.test is not None and data.federation.test.targets.bincount().tolist() == [6] * 7
    parts = {part: [row["image_id"] for row in own] for part, own in data._parts.items()}
    assert sorted(parts["train"] + parts["test"]) == sorted(rows)
    lesions = {part: {rows[image]["lesion_id"] for image in images} for part, images in parts.items()}
    assert len(lesions["train"] & lesions["test"]) > 10
    assert np.array_equal(np.asarray(HAM10000(str(tmp_path), test_per_class=6, num_clients=3).load().test.inputs), before)
    with one_line(ValueError, "test_by must be lesion or image; got 'patient'"):
        HAM10000(test_by="patient")  # type: ignore[arg-type]
    with one_line(ValueError, "27 images of 27 images with dx akiec"):
        HAM10000(str(tmp_path), test_by="image").setup()
