"""FEMNIST on small files in LEAF's format."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import flcog.datamodules
from datamodules.common import bytes_of, everything
from flcog.datamodules import FEMNIST


def leaf(users: dict[str, tuple[np.ndarray, list[int]]]) -> str:
    data = {user: {"x": (images / 255).reshape(-1, 784).tolist(), "y": labels} for user, (images, labels) in users.items()}
    return json.dumps({"users": [*users], "num_samples": [len(labels) for _, labels in users.values()], "user_data": data})


def write_leaf(root: Path, *parts: str) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Write two files for each part. The users, with names such as f0001_1, are in no particular order."""
    users = {f"f{k:04d}_{k % 7}": (bytes_of(10 + k, 28, 28, seed=k), [(k * 5 + j) % 62 for j in range(10 + k)]) for k in range(6)}
    for part in parts:
        (root / part).mkdir(parents=True)
        own = {"test": slice(3), "train": slice(3, None), "all_data": slice(None)}[part]
        cut = {user: (images[own], labels[own]) for user, (images, labels) in users.items()}
        names = list(cut)
        for number, writers in enumerate((names[1::2], names[0::2])):
            (root / part / f"{part}_{number}_niid_0_keep_0.json").write_text(leaf({user: cut[user] for user in writers}))
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
    (tmp_path / "femnist.npz").unlink()
    assert FEMNIST(str(tmp_path)).federation.num_clients == 3
