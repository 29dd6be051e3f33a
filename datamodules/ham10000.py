"""HAM10000: dermatoscopic images of pigmented skin lesions."""

import csv
from collections import defaultdict
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flcog.data import Augment, FederatedDataModule, Preprocess, Samples, Splits
from flcog.datamodules.augmentations import Augmentation, augmentation
from flcog.datamodules.files import reading, require_files
from flcog.datamodules.image_cache import ImageCache
from flcog.randomness import fold

_HOW_TO_GET = "get HAM10000_metadata and both image archives from https://doi.org/10.7910/DVN/DBW86T, unpack them, and pass --data.data_dir"


class HAM10000(FederatedDataModule):
    """10,015 photographs of skin lesions in 7 diagnoses, from 6,705 naevi to 115 dermatofibromas.

    Reads ``HAM10000_metadata.csv``, of which the columns ``lesion_id``, ``image_id`` and ``dx`` matter, and ``<image_id>.jpg`` from any
    folder below ``data_dir``, such as ``HAM10000_images_part_1`` (Tschandl et al. 2018, https://doi.org/10.1038/sdata.2018.161).

    The test set has as many images of each diagnosis, 30 in FedDisco (https://arxiv.org/abs/2305.19229, appendix B.1.2), and all
    images of a lesion lie on one side: lesions are taken in an order that is random but fixed, whole, while they fit. Images are
    decoded once, into ``<data_dir>/decoded``.

    Args:
        data_dir: the folder that holds the files above.
        test_per_class: test images of each diagnosis.
        image_size: images are scaled to squares of this side; FedDisco's 56 by default.
        mean, std: normalisation of each channel, on the [0, 1] scale; FedDisco's, which are ImageNet's.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``; FedDisco's by default.
        cache_dir: where the decoded images are kept, if not in ``data_dir``.
    """

    num_classes = 7
    class_names = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")

    def __init__(
        self,
        data_dir: str = "data/ham10000",
        test_per_class: int = 30,
        image_size: int = 56,
        mean: tuple[float, float, float] = (0.485, 0.456, 0.406),
        std: tuple[float, float, float] = (0.229, 0.224, 0.225),
        augmentation: Augmentation = "dermoscopy",
        cache_dir: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (("test_per_class", test_per_class), ("image_size", image_size)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        self.data_dir, self.test_per_class, self.image_size = Path(data_dir), test_per_class, image_size
        self.mean, self.std, self.augmentation = mean, std, augmentation
        self.cache_dir = Path(cache_dir) if cache_dir is not None else self.data_dir / "decoded"

    def prepare_data(self) -> None:
        self._cache.fill()

    def load(self) -> Splits:
        images = self._cache.load()
        targets = torch.tensor([self.class_names.index(row["dx"]) for row in self._rows])
        is_test = torch.tensor(self._is_test())
        return Splits(Samples(images[~is_test], targets[~is_test]), Samples(images[is_test], targets[is_test]))

    def preprocess(self) -> Callable[[Tensor], Tensor]:
        return Preprocess(self.mean, self.std)

    def augment(self) -> Augment | None:
        return augmentation(self.augmentation)

    @cached_property
    def _rows(self) -> list[dict[str, str]]:
        path = self.data_dir / "HAM10000_metadata.csv"
        require_files("HAM10000", [path], _HOW_TO_GET)
        with reading(path), path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
            for number, row in enumerate(rows, start=2):
                if row.get("dx") not in self.class_names or not row.get("lesion_id") or not row.get("image_id"):
                    raise ValueError(f"line {number} lacks a lesion_id, an image_id or a dx out of {', '.join(self.class_names)}")
        return sorted(rows, key=lambda row: row["image_id"])

    @property
    def _cache(self) -> ImageCache:
        folders = {path.stem: str(path.relative_to(self.data_dir)) for path in sorted(self.data_dir.rglob("*.jpg"))}
        files = [folders.get(row["image_id"], f"{row['image_id']}.jpg") for row in self._rows]
        require_files("HAM10000", [self.data_dir / file for file in files if not (self.data_dir / file).exists()], _HOW_TO_GET)
        return ImageCache(self.cache_dir, "images", self.data_dir, files, (self.image_size, self.image_size))

    def _is_test(self) -> list[bool]:
        lesions: dict[str, dict[str, int]] = {name: defaultdict(int) for name in self.class_names}
        for row in self._rows:
            lesions[row["dx"]][row["lesion_id"]] += 1
        chosen = set()
        for name, sizes in lesions.items():
            room = self.test_per_class
            for lesion in sorted(sizes, key=lambda lesion: fold("HAM10000", lesion)):
                if sizes[lesion] <= room:
                    room -= sizes[lesion]
                    chosen.add(lesion)
            if room or len(chosen.intersection(sizes)) == len(sizes):
                raise ValueError(
                    f"HAM10000: {sum(sizes.values())} images of {len(sizes)} lesions with dx {name} do not leave {self.test_per_class} "
                    "for the test set and some for training: lower test_per_class, or complete the metadata"
                )
        return [row["lesion_id"] in chosen for row in self._rows]
