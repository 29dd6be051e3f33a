"""FEMNIST: handwritten characters by writer, as LEAF prepares them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flcog.core.checks import within
from flcog.core.files import arrays_in, replacing
from flcog.data import Samples, Splits
from flcog.datamodules.augmentations import AugmentedImages
from flcog.datamodules.files import missing_files, reading

_HOW_TO_GET = (
    "run preprocess.sh -s niid --sf 1.0 -k 0 -t sample in data/femnist of https://github.com/TalwalkarLab/leaf, and pass "
    "--data.data_dir with the path of the folder data that it fills"
)


class FEMNIST(AugmentedImages):
    """805,263 handwritten digits and letters, 28x28 in grey, by 3,550 writers; every client is a writer.

    Reads LEAF's JSON (Caldas et al. 2018, https://arxiv.org/abs/1812.01097): ``<data_dir>/train/*.json`` and ``test/*.json``,
    split by sample or by writer, or ``all_data/*.json`` if these folders are missing. Each file holds ``users``, ``num_samples``
    and ``user_data``, which has lists ``x`` of 784 greys in [0, 1] and ``y`` of labels for each user.

    JSON is slow to read, so it is converted once, into ``<data_dir>/femnist.npz``. Delete this file if you change the JSON.

    Args:
        data_dir: LEAF's folder ``data/femnist/data``, or another with the files above.
        num_classes: 62 characters, or as many as a subset has (FedProx and FedDisco take 10).
        test_fraction: if there is only ``all_data``, this last fraction of each writer's samples forms the test set.
        mean: subtracted from pixels; None leaves LEAF's values: paper is 1 and ink 0.
        std: divides pixels; None leaves LEAF's values.
    """

    def __init__(
        self,
        data_dir: str = "data/femnist",
        num_classes: int = 62,
        test_fraction: float = 0.1,
        mean: float | None = None,
        std: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        within(self, "(0, 1)", test_fraction=test_fraction, hint="it is a part of each writer's samples")
        self.data_dir, self.num_classes, self.test_fraction = Path(data_dir), num_classes, test_fraction
        self.mean, self.std = mean, std
        self._converted = self.data_dir / "femnist.npz"

    def prepare_data(self) -> None:
        files = self._files()
        if self._converted.exists():
            return
        arrays = dict[str, np.ndarray]()
        for part, paths in files.items():
            # LEAF deals the writers out to files; names bring them into one order however it did.
            writers = sorted((writer for path in paths for writer in _read_writers(path)), key=lambda writer: writer[0])
            arrays[f"{part}_images"] = np.concatenate([images for _, images, _ in writers])
            arrays[f"{part}_labels"] = np.concatenate([labels for _, _, labels in writers])
            arrays[f"{part}_sizes"] = np.array([len(labels) for _, _, labels in writers])
        with replacing(self._converted) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def load(self) -> Splits:
        self.prepare_data()
        with reading(self._converted, "delete it, and it is made again"), arrays_in(self._converted) as archive:
            arrays = dict(archive)
            parts = {part: _samples(arrays, part) for part in self._files()}
        if "all_data" not in parts:
            return Splits(parts["train"], parts["test"])
        everyone = parts["all_data"]
        sizes = arrays["all_data_sizes"]
        position = np.arange(len(everyone)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        is_test = position >= np.repeat(sizes - np.floor(sizes * self.test_fraction), sizes)
        return Splits(everyone.subset(np.flatnonzero(~is_test)), everyone.subset(np.flatnonzero(is_test)))

    def _files(self) -> dict[str, list[Path]]:
        files = {part: sorted((self.data_dir / part).glob("*.json")) for part in ("train", "test", "all_data")}
        if files["train"] and files["test"]:
            return {"train": files["train"], "test": files["test"]}
        if files["all_data"]:
            return {"all_data": files["all_data"]}
        raise missing_files("FEMNIST", [self.data_dir / part / "*.json" for part in files], _HOW_TO_GET)


def _samples(arrays: dict[str, np.ndarray], part: str) -> Samples:
    images, labels, sizes = (arrays[f"{part}_{kind}"] for kind in ("images", "labels", "sizes"))
    return Samples(torch.from_numpy(images), torch.from_numpy(labels), np.repeat(np.arange(len(sizes)), sizes))


def _read_writers(path: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, images [n, 28, 28, 1] and labels [n] of each writer in a file."""
    with reading(path):
        content = json.loads(path.read_bytes())
        for user in content["users"]:
            data = content["user_data"][user]
            # LEAF divides bytes by 255, so nothing is lost.
            images = np.rint(np.asarray(data["x"], dtype=np.float64).reshape(-1, 28, 28, 1) * 255)
            yield user, images.astype(np.uint8), np.asarray(data["y"], np.int64)
