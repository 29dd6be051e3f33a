"""Files that are truncated, edited by hand or of another kind give one line that names the file and the entry, and no traceback."""

import gzip
import json
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import NUM_FEATURES, TinyData, classifier, make_trainer, train
from torch import Tensor

import flcog
from datamodules.common import CPU
from datamodules.test_dsprites import write_dsprites
from datamodules.test_femnist import write_leaf
from datamodules.test_flair import USERS, write_flair
from datamodules.test_mnist import write_mnist
from flcog.callbacks import BetaVAE, Fedssyn
from flcog.commands.errors import refusal
from flcog.core.labels import require_targets
from flcog.data import Samples, Splits, Task
from flcog.datamodules import FEMNIST, FLAIR, MNIST, AGNews, ArrayData, DSprites, Saved
from flcog.models import MLP, ResNet18


@contextmanager
def one_line(message: str) -> Iterator[None]:
    """Check that the command line would print a message of one line."""
    with pytest.raises((ValueError, OSError), match=message) as caught:
        yield
    reason = refusal(caught.value)
    assert reason is not None, "the command line would print a traceback"
    assert "\n" not in reason


# Archives -------------------------------------------------------------------------------------------------------------------------


def pack(folder: Path) -> None:
    for file in list(folder.iterdir()):
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()


def test_mnists_archives_are_read_where_they_lie(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    arrays = write_mnist(raw)
    pack(raw)
    federation = MNIST(str(tmp_path), num_clients=2).federation
    assert federation.test is not None
    assert np.array_equal(federation.train.inputs, arrays["train_images"][..., None])
    assert np.array_equal(federation.test.targets, arrays["t10k_labels"])
    archive = raw / "t10k-labels-idx1-ubyte.gz"
    whole = archive.read_bytes()
    for content in (whole[:-9], whole[:20], b"", b"text", gzip.compress(b"text")):
        archive.write_bytes(content)
        with one_line(r"t10k-labels-idx1-ubyte.gz cannot be read"):
            MNIST(str(tmp_path)).setup()
    archive.unlink()
    with one_line(r"MNIST found no \S*t10k-labels-idx1-ubyte \(.*download true, or put the .gz files"):
        MNIST(str(tmp_path)).setup()


def test_mnists_labels_are_classes(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    labels = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x0b")
    with one_line(r"train-labels-idx1-ubyte cannot be read.*label 11 at row 39: 10 classes are numbered 0 to 9"):
        MNIST(str(tmp_path)).setup()


def test_a_download_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Offline:
        mirrors = ("https://a.mirror",)

        def __init__(self, root: str, download: bool) -> None:
            raise RuntimeError("Error\n downloading")

    monkeypatch.setattr(MNIST, "_source", Offline)
    with one_line(r"Offline could not be downloaded to .*RuntimeError: Error downloading.*get the .gz files of https://a.mirror"):
        MNIST(str(tmp_path), download=True).prepare_data()


# Saved partitions -----------------------------------------------------------------------------------------------------------------


class TinyDataFrom(TinyData):
    """The tiny federation, with a split from a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.partitioner = Saved(path)


def test_a_saved_partition_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    TinyData().federation.partition.save(path)
    assert TinyDataFrom(path).federation.num_clients == 8
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 3] ^= 255
    for content in (whole[:-30], whole[:60], b"", bytes(changed)):
        path.write_bytes(content)
        with one_line("split.npz is not a saved partition"):
            TinyDataFrom(path).setup()
    np.save(path.with_suffix(".npy"), np.arange(3))
    with one_line("split.npy is not a saved partition"):
        TinyDataFrom(path.with_suffix(".npy")).setup()


# FLAIR ----------------------------------------------------------------------------------------------------------------------------


def test_a_photograph_that_is_missing(tmp_path: Path) -> None:
    entries = write_flair(tmp_path, USERS, image_size=16)
    (tmp_path / "small_images" / f"{entries[3]['image_id']}.jpg").unlink()
    with one_line(f"{entries[3]['image_id']}.jpg is not there: get it again"):
        FLAIR(str(tmp_path), image_size=16).setup()


# flcog writes decoded and converted files itself, so the message says to delete them -----------------------------------------------


# FEMNIST, HAM10000 and the others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("users"), "KeyError: 'users'"),
        (lambda content: content["user_data"]["f0001_1"]["y"].__setitem__(1, 1.7), "y of user 'f0001_1' has label 1.7 at row 1"),
        (lambda content: content["user_data"]["f0001_1"].update(x=[], y=[]), "user 'f0001_1' has 0 images"),
    ],
)
def test_femnists_users(tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    write_leaf(tmp_path, "train", "test")
    file = tmp_path / "train" / "train_0_niid_0_keep_0.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with one_line(rf"train_0_niid_0_keep_0.json cannot be read, .*{message}"):
        FEMNIST(str(tmp_path)).setup()


def test_a_damaged_conversion_of_femnist(tmp_path: Path) -> None:
    write_leaf(tmp_path, "train", "test")
    FEMNIST(str(tmp_path)).setup()
    file = tmp_path / "femnist.npz"
    file.write_bytes(file.read_bytes()[:-50])
    with one_line("femnist.npz cannot be read, delete it, and it is made again"):
        FEMNIST(str(tmp_path)).setup()


@pytest.mark.parametrize(
    "change", [{"tokens_train": np.zeros(8, np.int64)}, {"y_train": np.arange(7) % 4}, {"y_train": np.arange(8) / 4}]
)
def test_token_arrays(tmp_path: Path, change: dict[str, np.ndarray]) -> None:
    tokens = np.zeros((8, 20), np.int64)
    arrays = {"tokens_train": tokens, "y_train": np.arange(8) % 4, "tokens_test": tokens[:4], "y_test": np.arange(4)}
    np.savez(tmp_path / "tokens.npz", **(arrays | change))  # type: ignore[arg-type]
    with one_line(r"tokens.npz.*_train|8 inputs but 7 targets"):
        AGNews(tokens=str(tmp_path / "tokens.npz"), num_clients=2).setup()


def test_dsprites_factors(tmp_path: Path) -> None:
    write_dsprites(tmp_path)
    path = next(tmp_path.glob("*.npz"))
    np.savez(path, imgs=np.zeros((30, 64, 64), np.uint8), latents_classes=np.full((30, 6), 7))
    with one_line(r"dsprites\S*npz cannot be read.*latents_classes"):
        DSprites(str(tmp_path)).setup()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"indices": np.arange(4) + 0.5, "offsets": np.array([0, 4])}, "indices must be whole numbers"),
        ({"indices": np.arange(4), "offsets": np.array([0, 5, 4], np.uint64)}, "must rise from 0"),
        ({"indices": np.arange(4)}, "offsets"),
    ],
)
def test_saved_partitions_that_are_none(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    path = tmp_path / "split.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with one_line(rf"split.npz is not a saved partition .*{message}"):
        TinyDataFrom(path).setup()


@pytest.mark.slow
def test_weights_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"text")
    for content in (path.read_bytes(), path.read_bytes()[:-5], b"", b"text"):
        path.write_bytes(content)
        with one_line("weights.pt"):
            ResNet18(num_classes=2, weights=str(path))


# Labels and outputs ---------------------------------------------------------------------------------------------------------------


def test_a_data_modules_labels_lie_below_num_classes() -> None:
    data = TinyData()
    data.num_classes = 2
    with one_line(r"TinyData: the training set has label 2 at row \d+: 2 classes are numbered 0 to 1"):
        data.setup()


@pytest.mark.parametrize("value", [2.0, -1.0, 0.5, math.nan])
def test_labels_of_a_row_are_0_or_1(value: float) -> None:
    targets = torch.eye(3)[torch.arange(9) % 3]
    require_targets(targets, "multilabel", 3, "the set")
    targets[4, 2] = value
    with one_line(f"the set holds {value} for label 2 at row 4: labels are 0 or 1"):
        require_targets(targets, "multilabel", 3, "the set")


@pytest.mark.parametrize("part", ["training", "validation", "test"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_model_with_too_few_outputs(part: str, executor: str) -> None:
    data = LabelsUpTo({part: 4})
    trainer = make_trainer(None, executor=executor, eval_every=1)
    with one_line(
        rf"MLP has 3 outputs, and the {part} set has labels up to 4, so it takes 5 outputs: set the model's num_classes"
    ):
        trainer.prepare(classifier(), data)


class LabelsUpTo(TinyData):
    """The tiny federation, with a larger label in some of its sets."""

    num_classes = 5

    def __init__(self, largest: dict[str, int]) -> None:
        super().__init__()
        self.largest = largest

    def load(self) -> Splits:
        splits = super().load()
        parts = {"training": splits.train, "test": splits.test, "validation": splits.test}
        changed = {name: self._changed(name, samples) for name, samples in parts.items() if samples is not None}
        return Splits(changed["training"], changed["test"], changed["validation"])

    def _changed(self, name: str, samples: Samples) -> Samples:
        targets = samples.targets.clone()
        targets[-1] = self.largest.get(name, 0)
        return replace(samples, targets=targets)


class Own(flcog.FederatedDataModule):
    """A user's data module of 12 samples."""

    def __init__(self, targets: Any, task: Task = "classification", num_classes: int | None = 3) -> None:
        super().__init__(num_clients=6)
        self.targets, self.task = targets, task
        if num_classes is not None:
            self.num_classes = num_classes

    def load(self) -> Splits:
        return Splits(Samples(np.random.default_rng(0).random((12, NUM_FEATURES)), self.targets))


CLASSES = np.arange(12) % 3


def test_a_data_module_may_return_arrays() -> None:
    of_arrays, of_tensors = Own(CLASSES), Own(torch.from_numpy(CLASSES))
    arrays, tensors = (data.federation.load(data.federation.train, torch.arange(12), CPU) for data in (of_arrays, of_tensors))
    assert torch.equal(arrays[0], tensors[0]) and torch.equal(arrays[1], tensors[1])
    make_trainer(None).prepare(classifier(), of_arrays)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Own(CLASSES.astype(float)), "learns class indices, and the training set's targets are torch.float64: give integers"),
        (Own(np.eye(3)[CLASSES]), r"the training set needs one class index per sample; .* \(12, 3\): give targets.argmax\(1\)"),
        (Own(CLASSES, num_classes=None), "Own has no num_classes: set it in the class to the number of classes"),
        (Own(CLASSES.astype(str)), "the targets have type <U21: give numbers"),
        (Own(CLASSES.tolist()), "the targets contain a int: give tensors or arrays"),
    ],
    ids=["floats", "one-hot", "no number", "texts", "list"],
)
def test_other_targets_of_a_data_module_are_refused(data: Own, message: str) -> None:
    with one_line(message):
        make_trainer(None).prepare(classifier(), data)


def test_outputs_of_the_other_tasks() -> None:
    network = MLP(NUM_FEATURES, (8,), 2)
    with one_line("MLP has 2 outputs, and the training set has 3 labels, so it takes as many outputs"):
        make_trainer(None).prepare(flcog.MultiLabelClassifier(network), TinyData(targets="multilabel"))
    with one_line("MLP has 2 outputs, and the training set has one value per sample, so it takes one output"):
        make_trainer(None).prepare(flcog.Regressor(network), TinyData(targets="regression"))
    make_trainer(None).prepare(flcog.Regressor(MLP(NUM_FEATURES, (8,), 1)), TinyData(targets="regression"))


def test_a_model_for_another_task() -> None:
    data = ArrayData(train_inputs=np.ones((12, NUM_FEATURES)), train_targets=CLASSES.astype(float), num_clients=6)
    with one_line("Classifier learns classification, .* holds regression data: .*, or set the data's task .* floats are values"):
        make_trainer(None).prepare(classifier(), data)


def test_a_loss_of_the_users_own_takes_what_outputs_it_likes() -> None:
    class Ordinal(flcog.Classifier):
        """Uses one output fewer than there are classes."""

        def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            above = torch.arange(outputs.shape[1], device=outputs.device) < targets[:, None]
            return F.binary_cross_entropy_with_logits(outputs, above.to(outputs.dtype), reduction="none").mean(1)

    trainer = train(module=Ordinal(MLP(NUM_FEATURES, (8,), 2)), rounds=1)
    assert all(value.isfinite().all() for value in trainer.run.params.values())


def test_inputs_and_targets_of_different_lengths() -> None:
    with one_line("3 inputs but 2 targets: a set needs one target per input"):
        Samples(torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64))


# Fedssyn's sets -------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_damaged_synthetic_sets(tmp_path: Path) -> None:
    def prepare(rounds: int = 0) -> Any:
        trainer = make_trainer(
            tmp_path, Fedssyn(generator=BetaVAE(epochs=1), directory=str(tmp_path / "sets")), rounds=max(1, rounds)
        )
        (trainer.fit if rounds else trainer.prepare)(classifier(), TinyData())
        return trainer

    first = prepare(rounds=1)
    file = next((tmp_path / "sets").glob("*/client-0002.npz"))
    whole = file.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 3] ^= 255
    for content in (whole[:-30], whole[:60], b"", b"text", bytes(changed)):
        file.write_bytes(content)
        with one_line(rf"{file.name} cannot be read as a synthetic set: delete it, and it is generated again"):
            prepare()
    file.unlink()
    again = prepare(rounds=1)
    assert all(np.array_equal(again.params[name], value) for name, value in first.params.items())
