"""HAM10000: dermatoscopic images of pigmented skin lesions."""

import csv
from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from flcog.core.checks import at_least, one_of
from flcog.core.randomness import fold
from flcog.data import Samples, Splits
from flcog.datamodules.augmentations import Augmentation, AugmentedImages
from flcog.datamodules.decoded_images import DecodedImages
from flcog.datamodules.files import reading, require_files

_HOW_TO_GET = (
    "get HAM10000_metadata (.csv or .tab) and both image archives from https://doi.org/10.7910/DVN/DBW86T, unpack them, and pass "
    "--data.data_dir"
)


class HAM10000(AugmentedImages):
    """10,015 photographs of skin lesions in 7 diagnoses, from 6,705 naevi to 115 dermatofibromas.

    Reads the columns ``lesion_id``, ``image_id`` and ``dx`` of ``HAM10000_metadata.csv`` or, as Dataverse names it,
    ``HAM10000_metadata.tab``, and ``<image_id>.jpg`` from any folder below ``data_dir``, such as ``HAM10000_images_part_1``
    (Tschandl et al. 2018, https://doi.org/10.1038/sdata.2018.161).

    The test set has the same number of images of each diagnosis, 30 in FedDisco (https://arxiv.org/abs/2305.19229, appendix
    B.1.2). All images of a lesion are either in the training set or in the test set: whole lesions are added to the test set, in
    a fixed random order, as long as they fit. FedDisco does not mention lesions, and its code reads two folders of images. With
    ``test_by="image"``, one picture of a lesion may be in the training set and another in the test set. Images are decoded once,
    into ``<data_dir>/decoded``; delete this folder if you change images under the same names.

    Args:
        data_dir: the folder with the files above.
        test_per_class: test images of each diagnosis.
        test_by: the unit of the test set, a ``lesion`` or an ``image``.
        image_size: images are scaled to squares of this side; FedDisco's 56 by default.
        mean: subtracted from each channel, on the [0, 1] scale; FedDisco's, which is ImageNet's.
        std: divides each channel; as ``mean``.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``; FedDisco's by default.
        cache_dir: the folder for the decoded images; ``data_dir`` by default.
    """

    num_classes = 7
    shape_by = "stretch"
    class_names = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")

    def __init__(
        self,
        data_dir: str = "data/ham10000",
        test_per_class: int = 30,
        test_by: Literal["lesion", "image"] = "lesion",
        image_size: int = 56,
        mean: tuple[float, float, float] = (0.485, 0.456, 0.406),
        std: tuple[float, float, float] = (0.229, 0.224, 0.225),
        augmentation: Augmentation = "dermoscopy",
        cache_dir: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        at_least(self, 1, test_per_class=test_per_class, image_size=image_size)
        one_of(self, ("lesion", "image"), test_by=test_by)
        self.data_dir, self.test_per_class, self.image_size = Path(data_dir), test_per_class, image_size
        self.test_by = test_by
        self.mean, self.std, self.augmentation = mean, std, augmentation
        self.cache_dir = Path(cache_dir) if cache_dir is not None else self.data_dir / "decoded"

    def load(self) -> Splits:
        return Splits(self._load("train"), self._load("test"))

    def _load(self, part: str) -> Samples:
        targets = torch.tensor([self.class_names.index(row["dx"]) for row in self._parts[part]])
        return Samples(self._decoded(part).load(), targets)

    def _decoded(self, part: str) -> DecodedImages:
        files = [self._files.get(row["image_id"], f"{row['image_id']}.jpg") for row in self._parts[part]]
        require_files("HAM10000", [self.data_dir / file for file in files], _HOW_TO_GET)
        return DecodedImages(self.cache_dir, part, self.data_dir, files, (self.image_size, self.image_size))

    @cached_property
    def _files(self) -> dict[str, str]:
        return {path.stem: path.relative_to(self.data_dir).as_posix() for path in sorted(self.data_dir.rglob("*.jpg"))}

    @cached_property
    def _parts(self) -> dict[str, list[dict[str, str]]]:
        path, tabs = (self.data_dir / f"HAM10000_metadata.{end}" for end in ("csv", "tab"))
        path = tabs if tabs.exists() and not path.exists() else path
        require_files("HAM10000", [path], _HOW_TO_GET)
        with reading(path), path.open(newline="", encoding="utf-8") as file:
            separator = "\t" if "\t" in file.readline() else ","  # the name does not tell: Dataverse can give either under both
            file.seek(0)
            rows = sorted(csv.DictReader(file, delimiter=separator), key=lambda row: row["image_id"])
        key = f"{self.test_by}_id"
        chosen = self._of_test_set(rows, key)
        parts: dict[str, list[dict[str, str]]] = {"train": [], "test": []}
        for row in rows:
            parts["test" if row[key] in chosen else "train"].append(row)
        return parts

    def _of_test_set(self, rows: list[dict[str, str]], key: str) -> set[str]:
        """The lesions or images that are tested, by the column that names them."""
        sizes: dict[str, dict[str, int]] = {name: defaultdict(int) for name in self.class_names}
        for row in rows:
            sizes[row["dx"]][row[key]] += 1
        chosen = set()
        for name, wholes in sizes.items():
            room = self.test_per_class
            for whole in sorted(wholes, key=lambda whole: fold("HAM10000", whole)):
                if wholes[whole] <= room:
                    room -= wholes[whole]
                    chosen.add(whole)
            if room or chosen.issuperset(wholes):
                raise ValueError(
                    f"HAM10000: {sum(wholes.values())} images of {len(wholes)} {self.test_by}s with dx {name} do not make a test set "
                    f"of {self.test_per_class} and leave some for training: lower test_per_class, or complete the metadata"
                )
        return chosen
