"""ArrayData: reading arrays and their files, and refusing bad ones."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import fit

import flcog
from datamodules.common import bytes_of, everything, one_line, save
from flcog.data import Samples
from flcog.datamodules import IID, ArrayData, Dirichlet, LongTail
from flcog.models import MLP


def test_a_test_set_like_the_clients() -> None:
    rng = np.random.default_rng(0)
    train, test = rng.permutation(np.arange(5000) % 10), rng.permutation(np.arange(1000) % 10)
    arrays = {"train_inputs": train[:, None].astype(float), "train_targets": train}
    arrays |= {"test_inputs": np.arange(1000.0)[:, None], "test_targets": test}
    data = ArrayData(**arrays, num_clients=5, partitioner=LongTail(10, IID()), test_like_clients=True)
    kept = data.federation.test
    assert kept is not None
    # FedDisco's rule for its test set: class c keeps n_1 rho^(-(c - 1) / (C - 1)) samples, with n_1 = 100.
    assert kept.targets.bincount().tolist() == [int(100 * 10 ** (-c / 9) + 1e-9) for c in range(10)]
    rows = np.asarray(kept.inputs)[:, 0].astype(int)
    assert np.array_equal(test[rows], kept.targets) and len(set(rows)) == len(rows)
    as_they_are = ArrayData(**arrays, num_clients=5, test_like_clients=True).federation.test
    assert as_they_are is not None and len(as_they_are) == 1000
    one_class = ArrayData(**arrays | {"train_targets": np.full(5000, 3)}, num_classes=10, test_like_clients=True).federation.test
    assert one_class is not None and one_class.targets.tolist() == [3] * 100
    for change, what in (
        ({"train_targets": rng.random(5000), "test_targets": rng.random(1000)}, "ArrayData has the task regression"),
        ({"test_inputs": None, "test_targets": None}, "ArrayData has no test set"),
    ):
        with one_line(ValueError, what):
            ArrayData(**arrays | change, test_like_clients=True).setup()


def test_the_test_set_may_join_the_training_set() -> None:
    arrays = {"train_inputs": np.arange(80.0)[:, None], "train_targets": np.arange(80) % 2}
    arrays |= {"test_inputs": np.arange(80.0, 100.0)[:, None], "test_targets": np.arange(20) % 2}
    federation = ArrayData(**arrays, num_clients=4, join_test=True, client_test=0.25).federation
    assert federation.test is None and federation.client_test is not None
    assert federation.train.inputs[:, 0].tolist() == list(range(100)) and federation.client_test.sizes.sum() == 24
    assert sorted([*federation.partition.indices, *federation.client_test.indices]) == list(range(100))


def test_medmnist_layout(tmp_path: Path) -> None:
    grey, colour = bytes_of(30, 28, 28), bytes_of(30, 28, 28, 3)
    labels = (np.arange(30) % 4).reshape(30, 1).astype(np.uint8)
    arrays = {"train_labels": labels, "val_images": grey[:5], "val_labels": labels[:5]}
    arrays |= {"test_images": grey[:8], "test_labels": labels[:8]}
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
    """Without a refusal, three values would silently turn a grey image into three channels."""
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


@pytest.mark.parametrize(
    ("users", "message"),
    [
        (list("ab"), r"6 samples have users of shape \(2,\): give one for each sample, in their order"),
        (np.array([1.0, np.nan, 2, 2, np.nan, 1]), "sample 1 has no user, and 1 others: fill or drop them"),
    ],
    ids=["short", "nan"],
)
@pytest.mark.parametrize("own", [False, True], ids=["ArrayData", "Samples"])
def test_users_are_one_per_sample(users: Any, message: str, own: bool) -> None:
    with one_line(ValueError, message):
        if own:
            Samples(torch.ones(6, 2), torch.arange(6) % 2, users)
        else:
            ArrayData(train_inputs=np.ones((6, 2)), train_targets=np.arange(6) % 2, train_users=users).setup()


@pytest.mark.parametrize(("train", "test"), [("uint8", "float32"), ("float32", "int64")])
def test_all_parts_have_one_type(train: str, test: str) -> None:
    """uint8 is scaled and floats are not, so that training and test images would differ by a factor of 255."""
    inputs = bytes_of(6, 4)
    options = {"train_targets": [0, 1] * 3, "test_targets": [0, 1] * 3, "num_clients": 2}
    with one_line(ValueError, "ArrayData: the inputs have the types train .*: give all the same type"):
        ArrayData(train_inputs=inputs.astype(train), test_inputs=inputs.astype(test), **options).setup()
    ArrayData(train_inputs=inputs.astype(np.float64), test_inputs=inputs.astype(np.float32), **options).setup()


def test_users_are_the_clients_unless_a_partitioner_is_given() -> None:
    tokens = torch.randint(0, 50, (6, 9))
    arrays: dict[str, Any] = {"train_inputs": tokens, "train_targets": torch.arange(6) % 2, "train_users": list("abbccc")}
    federation = ArrayData(**arrays).federation
    assert federation.sizes.tolist() == [1, 2, 3] and torch.equal(everything(federation, federation.train)[0], tokens)
    assert ArrayData(**arrays, partitioner=IID(), num_clients=2).federation.sizes.tolist() == [3, 3]


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


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"train_labels": [0, 1, 5]}, {"num_classes": 3}, "the training set has label 5 at row 2: 3 classes are numbered 0 to 2"),
        ({"train_labels": [0, 1]}, {}, "inputs and targets have 3 and 2 rows"),
        ({"train_images": [[1.0, 2], [3, np.nan], [5, 6]]}, {}, "ArrayData: the training set has NaN .* in sample 1"),
        ({"train_images": np.ones((3, 3, 8, 8))}, {}, r"mine\.npz: .* layout is NHWC: set layout=NCHW"),
        ({"train_images": np.ones((3, 8, 8, 3))}, {"layout": "NCHW"}, "layout is NCHW: set layout=NHWC"),
        ({"train_labels": [[1, 2], [0, 1], [0, 1]]}, {}, r"mine\.npz: .* 2 columns of whole numbers: .* set task=regression"),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, Any], options: dict[str, Any], message: str) -> None:
    path = save(tmp_path / "mine.npz", **{"train_images": np.ones((3, 4)), "train_labels": [0, 1, 1], **arrays})
    with one_line(ValueError, message):
        ArrayData(path, **options).setup()


def test_bad_array_files(tmp_path: Path) -> None:
    with one_line(FileNotFoundError, r"ArrayData found no \S*none.npz.*--data.path"):
        ArrayData(str(tmp_path / "none.npz")).setup()
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    with one_line(ValueError, "broken.npz cannot be read"):
        ArrayData(str(tmp_path / "broken.npz")).setup()
    with one_line(ValueError, "other.npz has no 'train_inputs' and no 'train_targets'; it has neither"):
        ArrayData(save(tmp_path / "other.npz", x=[1])).setup()
    with one_line(ValueError, "either a path or arrays"):
        ArrayData("x.npz", train_inputs=[[1.0]], train_targets=[0])
    with one_line(ValueError, "mean and std come together"):
        ArrayData("x.npz", mean=[0.5]).preprocess()


def test_channels_first(tmp_path: Path) -> None:
    images = bytes_of(12, 5, 4, 3)
    torchs = images.transpose(0, 3, 1, 2)
    memory_map = np.memmap(tmp_path / "pixels", np.uint8, "w+", shape=torchs.shape)
    memory_map[:] = torchs
    options: dict[str, Any] = {"train_targets": np.arange(12) % 3, "num_clients": 2}
    last = ArrayData(train_inputs=images, **options).federation
    expected = everything(last, last.train)[0]
    for inputs in (torchs, torch.from_numpy(torchs.copy()), memory_map):
        federation = ArrayData(train_inputs=inputs, layout="NCHW", **options).federation
        assert torch.equal(everything(federation, federation.train)[0], expected)
    assert isinstance(federation.train.inputs, np.memmap)


@pytest.mark.parametrize(
    "targets",
    [np.arange(40) % 2, (np.arange(40) % 2)[:, None], np.array(["no", "yes"])[np.arange(40) % 2]],
    ids=["N", "N1", "text"],
)
def test_one_label_trains_one_logit(tmp_path: Path, targets: np.ndarray) -> None:
    features = (np.arange(40) % 2 - 0.5)[:, None]
    arrays = {"train_inputs": features, "train_targets": targets, "test_inputs": features, "test_targets": targets}
    data = ArrayData(**arrays, task="multilabel", num_clients=4)
    assert (data.num_classes, data.class_names) == (1, None)
    assert data.federation.train.targets.tolist() == (np.arange(40.0) % 2)[:, None].tolist()
    client = flcog.MultiLabelClassifier(MLP(1, (), 1), optimizer=partial(torch.optim.SGD, lr=1.0))
    trainer = fit(tmp_path, module=client, data=data, rounds=4, local_steps=8, eval_every=1, clients_per_round=4)
    assert trainer.rows[-1]["test/O-F1"] == pytest.approx(1)


def test_several_values_per_sample_are_learnt_together(tmp_path: Path) -> None:
    """Each column has its own metrics, and the loss is the mean over the columns."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 3))
    values = features @ rng.normal(size=(3, 2))
    arrays = {"train_inputs": features, "test_inputs": features, "num_clients": 4, "partitioner": Dirichlet(5.0)}

    def last(columns: Any, outputs: int) -> dict[str, float]:
        torch.manual_seed(0)
        data = ArrayData(train_targets=values[:, columns], test_targets=values[:, columns], **arrays)
        assert data.federation.task == "regression" and data.federation.label_counts(0).sum() == data.federation.sizes[0]
        client = flcog.Regressor(MLP(3, (), outputs), optimizer=partial(torch.optim.SGD, lr=0.2))
        return fit(tmp_path, module=client, data=data, rounds=8, local_steps=8, eval_every=1, clients_per_round=4).rows[-1]

    row = last([0, 1], 2)
    assert row["test/mse"] == pytest.approx((row["test/mse_0"] + row["test/mse_1"]) / 2)
    assert row["test/mse"] == pytest.approx(row["test/loss"], rel=1e-5)
    assert row["test/r2_0"] > 0.9 and row["test/r2_1"] > 0.9
    with one_line(ValueError, "the training set has 2 values per sample, so it takes 2 outputs"):
        last([0, 1], 1)
