"""FLAIR and the image cache on small files in exactly the format that https://github.com/apple/ml-flair downloads."""

import json
import multiprocessing
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import ROOT
from PIL import Image
from torch import Tensor

from flcog import FederatedTrainer, MultiLabelClassifier
from flcog.commands.cli import main
from flcog.datamodules import FLAIR, decoded_images
from flcog.datamodules.decoded_images import DecodedImages
from flcog.datamodules.flair import COARSE_LABELS
from flcog.datamodules.row_file import RowFile
from flcog.models import SimpleCNN

FINE = {"bag": "equipment", "waffle": "food", "bread": "food", "blue_sky": "outdoor", "wood_processed": "material"}


def write_flair(folder: Path, users: dict[str, int], image_size: int = 256) -> list[dict[str, Any]]:
    """Write images of users with names <partition><number>. Returns the index, with the images of all users in a random order."""
    rng, entries = np.random.default_rng(0), []
    (folder / "small_images").mkdir(parents=True)
    for user, num_images in users.items():
        for _ in range(num_images):
            image = f"{14_913_474_848 + len(entries)}"
            fine = sorted(rng.choice([*FINE], rng.integers(1, 4), replace=False).tolist())
            labels = {"labels": sorted({FINE[label] for label in fine}), "fine_grained_labels": fine}
            entries.append({"user_id": f"{user}@N00", "image_id": image, "partition": user.rstrip("0123456789"), **labels})
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((image_size, image_size)).save(folder / "small_images" / f"{image}.jpg")
    entries = [entries[i] for i in rng.permutation(len(entries))]
    (folder / "labels_and_metadata.json").write_text(json.dumps(entries))
    pairs = [*FINE.items(), *((label, label) for label in COARSE_LABELS)]
    (folder / "label_relationship.txt").write_text("\n".join(f"({fine}, {coarse})" for fine, coarse in pairs) + "\n")
    return entries


USERS = {**{f"train{k}": 1 + k % 3 for k in range(12)}, "val0": 2, "val1": 1, "test0": 3, "test1": 2}


@pytest.fixture
def entries(tmp_path: Path) -> list[dict[str, Any]]:
    return write_flair(tmp_path, USERS, image_size=32)


def decoded(folder: Path, image: str) -> np.ndarray:
    return np.asarray(Image.open(folder / "small_images" / f"{image}.jpg"))


def test_every_image_with_its_labels_and_its_user(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    data = FLAIR(str(tmp_path), image_size=32)
    federation = data.federation
    assert federation.task == "multilabel" and federation.num_classes == 17
    assert federation.class_names == tuple(sorted(COARSE_LABELS)) and federation.class_names[9] == "liquid"
    for samples, part in ((federation.train, "train"), (federation.val, "val"), (federation.test, "test")):
        assert samples is not None and isinstance(samples.inputs, Tensor) and samples.users is not None
        # Users are sorted by name, and each user's images are in the order of the file.
        wanted = sorted((e for e in entries if e["partition"] == part), key=lambda entry: entry["user_id"])
        assert len(samples) == len(wanted)
        names = sorted({entry["user_id"] for entry in wanted})
        for row, entry in enumerate(wanted):
            assert np.array_equal(samples.inputs[row].numpy(), decoded(tmp_path, entry["image_id"]))
            assert [COARSE_LABELS[i] for i in samples.targets[row].nonzero().flatten()] == entry["labels"]
            assert names[samples.users[row]] == entry["user_id"]
    assert federation.num_clients == 12
    names = sorted({entry["user_id"] for entry in entries if entry["partition"] == "train"})
    assert federation.partition.sizes.tolist() == [USERS[name.removesuffix("@N00")] for name in names]
    inputs, _ = federation.load(federation.train, torch.arange(3), torch.device("cpu"))
    expected = (federation.train.gather(torch.arange(3)) / 255 - torch.tensor(data.mean)) / torch.tensor(data.std)
    torch.testing.assert_close(inputs, expected.permute(0, 3, 1, 2))


def test_fine_labels(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    federation = FLAIR(str(tmp_path), labels="fine", image_size=32).federation
    assert federation.class_names == tuple(sorted([*FINE, *COARSE_LABELS]))
    first = min((e for e in entries if e["partition"] == "train"), key=lambda entry: entry["user_id"])
    assert [federation.class_names[i] for i in federation.train.targets[0].nonzero().flatten()] == first["fine_grained_labels"]


def users_of(data: FLAIR, entries: list[dict[str, Any]], part: str) -> set[str]:
    """The users whose images a data module has selected."""
    user_of = {entry["image_id"]: entry["user_id"] for entry in entries}
    return {user_of[image.file.removesuffix(".jpg")] for image in data._images[part]}


def test_max_users_decodes_only_theirs(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    few = FLAIR(str(tmp_path), max_users=4, max_eval_users=1, image_size=32)
    kept = {part: users_of(few, entries, part) for part in few._images}
    assert [len(users) for users in kept.values()] == [4, 1, 1]
    for entry in entries:
        if entry["user_id"] not in kept[entry["partition"]]:
            (tmp_path / "small_images" / f"{entry['image_id']}.jpg").unlink()
    federation = few.federation
    assert federation.num_clients == 4 and federation.test is not None
    assert len(federation.test) == sum(entry["user_id"] in kept["test"] for entry in entries)
    assert not few.notes


def test_samples_of_users_are_nested_and_ignore_the_order(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    def chosen(limit: int, seed: int = 0) -> set[str]:
        return users_of(FLAIR(str(tmp_path), max_users=limit, partition_seed=seed), entries, "train")

    samples = [chosen(limit) for limit in range(1, 15)]
    assert [len(users) for users in samples] == [*range(1, 13), 12, 12]
    assert all(small <= large for small, large in pairwise(samples))
    assert chosen(4, seed=1) != chosen(4)
    (tmp_path / "labels_and_metadata.json").write_text(json.dumps(entries[::-1], indent=2))
    assert chosen(4) == samples[3]


def test_a_large_set_stays_on_disk(tmp_path: Path, entries: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = FLAIR(str(tmp_path), image_size=32).federation.train
    monkeypatch.setattr(decoded_images, "IN_MEMORY_BYTES", 0)
    federation = FLAIR(str(tmp_path), image_size=32).federation
    assert isinstance(federation.train.inputs, RowFile)
    indices = torch.tensor([5, 0, 5])
    assert torch.equal(federation.train.gather(indices), in_memory.gather(indices))
    assert federation.load(federation.train, indices, torch.device("cpu"))[0].shape == (3, 3, 32, 32)


def test_a_round_of_training_from_disk(tmp_path: Path, entries: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_images, "IN_MEMORY_BYTES", 0)
    data = FLAIR(str(tmp_path), image_size=32, augmentation="crop-flip", batch_size=2)
    trainer = FederatedTrainer(
        rounds=1, clients_per_round=3, local_steps=2, logger=False, accelerator="cpu", default_root_dir=str(tmp_path / "runs")
    )
    trainer.fit(MultiLabelClassifier(SimpleCNN(3, 17, image_size=32)), data)
    assert 0 <= trainer.history[-1]["test/O-F1"] <= 1


def test_a_killed_decode_goes_on_where_it_stopped(tmp_path: Path) -> None:
    write_flair(tmp_path, {"train0": 40, "val0": 1, "test0": 1}, image_size=16)

    def decode_slowly() -> None:
        decode = DecodedImages._decode
        DecodedImages._decode = lambda self, row: (time.sleep(0.02), decode(self, row))[1]  # type: ignore[method-assign]
        FLAIR(str(tmp_path), image_size=16).prepare_data()

    process = multiprocessing.get_context("fork").Process(target=decode_slowly)
    process.start()
    sums: Path | None = None
    while sums is None or np.count_nonzero(np.fromfile(sums, np.uint32)) < 5:
        assert process.is_alive(), "the decode ended before it could be killed"
        time.sleep(0.005)
        sums = next(tmp_path.glob("decoded/train*.sums"), None)
    process.kill()
    process.join()
    done = np.fromfile(sums, np.uint32) != 0
    assert 5 <= np.count_nonzero(done) < 40

    data = FLAIR(str(tmp_path), image_size=16)
    images = [image.file.removesuffix(".jpg") for image in data._images["train"]]
    expected = np.stack([decoded(tmp_path, image) for image in images])
    for image in np.array(images)[done]:
        (tmp_path / "small_images" / f"{image}.jpg").unlink()  # decoding it again would fail
    assert np.array_equal(data.federation.train.inputs, expected)


def test_processes_that_start_together_decode_once(tmp_path: Path) -> None:
    write_flair(tmp_path, {"train0": 20, "val0": 1, "test0": 1}, image_size=16)

    def decode_and_log() -> None:
        decode = DecodedImages._decode

        def logged(self: DecodedImages, row: int) -> np.ndarray:
            with (tmp_path / "log").open("a") as log:
                log.write(f"{self.files[row]}\n")
            time.sleep(0.01)
            return decode(self, row)

        DecodedImages._decode = logged  # type: ignore[method-assign]
        FLAIR(str(tmp_path), image_size=16).prepare_data()

    processes = [multiprocessing.get_context("fork").Process(target=decode_and_log) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted((tmp_path / "log").read_text().split()) == sorted(file.name for file in (tmp_path / "small_images").iterdir())


def test_images_of_other_sizes(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    Image.fromarray(wide[:, :10]).convert("L").save(tmp_path / "grey.png")

    def load(size: tuple[int, int], **options: Any) -> np.ndarray:
        return np.asarray(DecodedImages(tmp_path, "a", tmp_path, ["grey.png", "wide.png"], size, **options).load())

    assert load((5, 5), shape_by="crop")[1].min() > 200
    assert 60 < load((5, 5), shape_by="stretch")[1].mean() < 110
    assert load((10, 30), mode="L").shape == (2, 10, 30, 1)
    with pytest.raises(ValueError, match=r"wide.png is 30x10, unlike the first image of 10x10: set an image_size"):
        load((10, 10), shape_by="reject")


def test_images_are_decoded_when_they_are_read(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    first = FLAIR(str(tmp_path), image_size=32, cache_dir=str(tmp_path / "first")).federation.train.inputs
    data = FLAIR(str(tmp_path), image_size=32, decode="when read")
    images = data.federation.train.inputs
    files = list(data._decoded("train").files)
    (tmp_path / "small_images" / files[3]).unlink()
    assert np.array_equal(images[np.array([5, 0, 5])], first[torch.tensor([5, 0, 5])])
    for image in (files[0], files[5]):  # these are already decoded, so another run can read them
        (tmp_path / "small_images" / image).unlink()
    again = FLAIR(str(tmp_path), image_size=32, decode="when read").federation.train.inputs
    assert np.array_equal(again[5], first[5]) and np.array_equal(again[np.array([0, 1])], first[:2])
    with pytest.raises(FileNotFoundError, match=files[3]):
        again[3]


@pytest.mark.slow
@pytest.mark.usefixtures("entries", "command_line")
def test_fedcogs_setting_runs_from_its_configs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = ROOT / "configs"
    words = ["fit", "-c", str(configs / "flair.yaml"), "-c", str(configs / "methods/fedcog-flair.yaml")]
    smaller = {
        "trainer.rounds": 2,
        "trainer.local_steps": 1,
        "trainer.clients_per_round": 2,
        "trainer.eval_every": 1,
        "trainer.callbacks.start_round": 1,
        "trainer.callbacks.num_samples": 17,
        "trainer.callbacks.steps": 1,
        "trainer.logger": "false",
        "trainer.default_root_dir": tmp_path / "runs",
        "data.data_dir": tmp_path,
        "data.image_size": 64,
        "data.max_users": "null",
    }
    main([*words, *(word for name, value in smaller.items() for word in (f"--{name}", str(value)))])
    assert "2 of 2" in capsys.readouterr().out
