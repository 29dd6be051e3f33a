"""Images in one folder per class, as in torchvision's ImageFolder."""

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from flcog.core.checks import at_least, one_of
from flcog.data import Samples, Splits
from flcog.datamodules.augmentations import Augmentation, AugmentedImages
from flcog.datamodules.decoded_images import DecodedImages, size_of
from flcog.datamodules.files import require_files
from flcog.datamodules.leash_classes import LEASHES, LeashName

EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff")


class ImageFolders(AugmentedImages):
    """Any classification set that is stored as ``<data_dir>/<split>/<class>/**/<image>``.

    Images are decoded once, into a file in ``<data_dir>/decoded``, which later runs read. Sets of more than 2 GB stay on disk. Delete
    this folder if you change images under the same names.
    Files whose names begin with a dot are left out: macOS puts such files beside the images of an archive.
    Greys of 16 bits are scaled from their full range to bytes; a picture that uses 12 bits of them becomes dark.

    CINIC-10 (Darlow et al. 2018, https://arxiv.org/abs/1810.03505, https://datashare.ed.ac.uk/handle/10283/3192) in FedDisco's
    form, as YAML:

        class_path: ImageFolders
        init_args:
          data_dir: data/CINIC-10
          val: valid
          mean: [0.47889522, 0.47227842, 0.43047404]
          std: [0.24205776, 0.23828046, 0.25874835]
          augmentation: crop-flip

    For a public set of some ImageNet classes, such as FedWalk's leash (https://arxiv.org/abs/2404.11888), set ``image_size``, and
    set ``classes`` to their WordNet ids or to the name of a list in ``flcog/datamodules/leash_classes.py``.

    Args:
        data_dir: the folder with the splits.
        train: folder of the training images.
        test: folder of the test images; None if there are none.
        val: folder of the validation images; None if there are none.
        classes: the class folders to use, in label order, or a leash's name (``cifar10_lh``, ``cifar10_mh``, ``cifar10_hh``,
            ``cifar100_lh``, ``cifar10_tiny_imagenet``); all folders of ``train`` in alphabetical order by default, and
            others of ``test`` and ``val`` are left out. A named folder may be empty.
        image_size: images are scaled and cropped about the centre to squares of this side; None if all images have the same size.
        grey: read one channel instead of three.
        mean: subtracted from each channel, on the [0, 1] scale; None for no change.
        std: divides each channel; None for no change.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``.
        cache_dir: the folder for the decoded images; ``data_dir`` by default.
    """

    def __init__(
        self,
        data_dir: str = "data/images",
        train: str = "train",
        test: str | None = "test",
        val: str | None = None,
        classes: list[str] | LeashName | None = None,
        image_size: int | None = None,
        grey: bool = False,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        augmentation: Augmentation = "none",
        cache_dir: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(classes, str):
            one_of(self, LEASHES, classes=classes)
            classes = list(LEASHES[classes])
        at_least(self, 1, image_size=image_size)
        self.data_dir, self.classes, self.image_size, self.grey = data_dir, classes, image_size, grey
        self.folders = {"train": train, "test": test, "val": val}
        self.mean, self.std, self.augmentation = mean, std, augmentation
        self.cache_dir = Path(cache_dir) if cache_dir is not None else Path(data_dir) / "decoded"

    @cached_property
    def class_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The class folders, in label order."""
        if self.classes is not None:
            return tuple(self.classes)
        folder = Path(self.data_dir) / str(self.folders["train"])
        self._require(folder)
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        if not names:
            raise ValueError(f"{folder} has no class folders: images are looked for in {folder}/<class>/")
        return tuple(names)

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """As many as there are class folders."""
        return len(self.class_names)

    def load(self) -> Splits:
        return Splits(**{part: self._load(part, folder) for part, folder in self.folders.items() if folder is not None})

    def _load(self, part: str, folder: str) -> Samples:
        files = self._files(folder)
        labels = torch.arange(len(files)).repeat_interleave(torch.tensor([len(own) for own in files]))
        return Samples(self._decoded(part, files).load(), labels)

    def _decoded(self, part: str, files: list[list[str]]) -> DecodedImages:
        root, names = Path(self.data_dir) / str(self.folders[part]), [name for own in files for name in own]
        size = (self.image_size, self.image_size) if self.image_size is not None else size_of(root / names[0])
        shape_by: Literal["reject", "crop"] = "reject" if self.image_size is None else "crop"
        return DecodedImages(self.cache_dir, part, root, names, size, shape_by, "L" if self.grey else "RGB")

    def _files(self, split: str) -> list[list[str]]:
        """The images of each class, named from the split's folder."""
        root = Path(self.data_dir) / split
        self._require(root, *(root / name for name in self.class_names))
        files = [sorted(images_in(root, name)) for name in self.class_names]
        empty = [root / name for name, own in zip(self.class_names, files, strict=True) if not own]
        if empty and (self.classes is None or len(empty) == len(files)):
            raise ValueError(f"{empty[0] if self.classes is None else root} has no images ({', '.join(EXTENSIONS)})")
        return files

    def _require(self, *folders: Path) -> None:
        require_files("ImageFolders", folders, "check --data.data_dir, the names of the splits, and --data.classes")


def images_in(root: Path, folder: str) -> Iterator[str]:
    """Every image below the folder, named from ``root``; no hidden files, such as macOS's ``._x.png``."""
    for inside, _, names in os.walk(root / folder, followlinks=True):
        start = Path(inside).relative_to(root).as_posix()
        yield from (f"{start}/{name}" for name in names if name.lower().endswith(EXTENSIONS) and not name.startswith("."))
