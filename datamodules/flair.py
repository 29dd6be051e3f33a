"""FLAIR: photographs of 51,414 Flickr users with several labels each."""

import json
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from flcog.core.checks import at_least, one_of
from flcog.core.randomness import fold
from flcog.data import Samples, Splits
from flcog.datamodules.augmentations import Augmentation, AugmentedImages
from flcog.datamodules.decoded_images import DecodedImages
from flcog.datamodules.files import reading, require_files

COARSE_LABELS = (
    "animal", "art", "celebration", "equipment", "fire", "food", "games", "interior_room", "light", "liquid", "material", "music",
    "outdoor", "plant", "recreation", "religion", "structure",
)  # fmt: skip

_HOW_TO_GET = "get it with download_dataset.py of https://github.com/apple/ml-flair, and pass --data.data_dir"


class _Image(NamedTuple):
    """An image's user, its file, and the columns of its labels."""

    user: str
    file: str
    labels: list[int]


class FLAIR(AugmentedImages):
    """429,078 photographs, 256x256, each with some of 17 coarse or 1,628 fine labels; every client is a photographer.

    Reads ``labels_and_metadata.json``, ``label_relationship.txt`` and ``small_images/<image_id>.jpg`` (Song et al. 2022,
    https://arxiv.org/abs/2207.08869), which https://github.com/apple/ml-flair downloads. Training, validation and test users are
    disjoint: 41,131, 5,141 and 5,142 of them, with 345,879, 39,239 and 43,960 images.

    Only the images of the selected users are decoded, once, into a memory-mapped file in ``<data_dir>/decoded``, which a further run
    completes after an interruption. All images take 84 GB. Delete this folder if you change images: it is used without a look at
    them, so that they need not be there.

    ``partition_seed`` selects the users. The users of a smaller ``max_users`` are among those of a larger one, in every order of the
    file.

    Args:
        data_dir: the folder with the files above.
        labels: the 17 coarse labels, in alphabetical order, or the fine ones.
        max_users: training users, drawn at random; FedCOG takes 200 (https://arxiv.org/abs/2312.05966). None takes all.
        max_eval_users: users of the validation and of the test set, each drawn at random; None takes all.
        image_size: images are scaled to squares of this side.
        mean: subtracted from each channel, on the [0, 1] scale; ImageNet's, as in Apple's benchmark.
        std: divides each channel; as ``mean``.
        augmentation: random changes of training images, see ``flcog.datamodules.augmentations``.
        cache_dir: the folder for the decoded images; ``data_dir`` by default.
        decode: ``first`` decodes the images of all selected users before round 1. ``when read`` decodes an image when a batch first
            contains it, so that disk and time depend on the clients that are sampled; disk space is then taken image by image.
    """

    task = "multilabel"
    shape_by = "stretch"

    def __init__(
        self,
        data_dir: str = "data/flair",
        labels: Literal["coarse", "fine"] = "coarse",
        max_users: int | None = None,
        max_eval_users: int | None = None,
        image_size: int = 256,
        mean: tuple[float, float, float] = (0.485, 0.456, 0.406),
        std: tuple[float, float, float] = (0.229, 0.224, 0.225),
        augmentation: Augmentation = "none",
        cache_dir: str | None = None,
        decode: Literal["first", "when read"] = "first",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        one_of(self, ("first", "when read"), decode=decode)
        self.decode = decode
        at_least(self, 1, max_users=max_users, max_eval_users=max_eval_users, image_size=image_size)
        self.data_dir, self.labels, self.image_size = Path(data_dir), labels, image_size
        self.max_users = {"train": max_users, "val": max_eval_users, "test": max_eval_users}
        self.mean, self.std, self.augmentation = mean, std, augmentation
        self.cache_dir = Path(cache_dir) if cache_dir is not None else self.data_dir / "decoded"

    @cached_property
    def class_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The labels, in the order of the targets' columns."""
        if self.labels == "coarse":
            return COARSE_LABELS
        path = self.data_dir / "label_relationship.txt"
        require_files("FLAIR", [path], _HOW_TO_GET)
        with reading(path):
            # Images whose subject fits no finer label carry a coarse one among their fine labels too.
            fine = {_fine_label(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()}
        return tuple(sorted(fine.union(COARSE_LABELS)))

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """As many as there are labels."""
        return len(self.class_names)

    def prepare_data(self) -> None:
        if self.decode == "first":
            for part in self._images:
                self._decoded(part).fill()

    def load(self) -> Splits:
        return Splits(train=self._load("train"), test=self._load("test"), val=self._load("val"))

    @cached_property
    def _images(self) -> dict[str, list[_Image]]:
        """The selected users' images of each part, one user after another, so that a client's images lie together on disk."""
        path = self.data_dir / "labels_and_metadata.json"
        require_files("FLAIR", [path, self.data_dir / "small_images"], _HOW_TO_GET)
        key = "labels" if self.labels == "coarse" else "fine_grained_labels"
        column = {name: place for place, name in enumerate(self.class_names)}
        users: dict[str, dict[str, list[_Image]]] = {part: defaultdict(list) for part in self.max_users}
        with reading(path):
            for entry in json.loads(path.read_bytes()):
                image = _Image(entry["user_id"], f"{entry['image_id']}.jpg", [column[label] for label in entry[key]])
                users[entry["partition"]][image.user].append(image)
        return {part: [image for user in self._selected(part, own) for image in own[user]] for part, own in users.items()}

    def _selected(self, part: str, users: Iterable[str]) -> list[str]:
        """The users with the smallest keys, in the order of their names."""
        seed = fold(self.partition_seed, part)
        return sorted(sorted(users, key=lambda user: fold(seed, user))[: self.max_users[part]])

    def _decoded(self, part: str) -> DecodedImages:
        files = [image.file for image in self._images[part]]
        return DecodedImages(self.cache_dir, part, self.data_dir / "small_images", files, (self.image_size, self.image_size))

    def _load(self, part: str) -> Samples:
        images, decoded = self._images[part], self._decoded(part)
        targets = np.zeros((len(images), self.num_classes), dtype=np.float32)
        for row, image in zip(targets, images, strict=True):
            row[image.labels] = 1
        owners = np.unique([image.user for image in images], return_inverse=True)[1]
        return Samples(decoded.load() if self.decode == "first" else decoded.rows, torch.from_numpy(targets), owners)


def _fine_label(line: str) -> str:
    """The first of the pair on a line of ``label_relationship.txt``, without the brackets, quotes and separators around it."""
    words = line.translate(str.maketrans("()[]{}'\"`,;:|>=", " " * 15)).split()
    return words[0]
