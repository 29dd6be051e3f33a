"""FLAIR: photographs of 51,414 Flickr users with several labels each."""

import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from flcog.core.checks import at_least
from flcog.core.randomness import fold
from flcog.data import Augment, FederatedDataModule, Preprocess, Samples, Splits
from flcog.datamodules.augmentations import Augmentation, augmentation
from flcog.datamodules.files import reading, require_files
from flcog.datamodules.image_cache import ImageCache
from flcog.datamodules.partitioners import Natural

COARSE_LABELS = (
    "animal",
    "art",
    "celebration",
    "equipment",
    "fire",
    "food",
    "games",
    "interior_room",
    "light",
    "liquid",
    "material",
    "music",
    "outdoor",
    "plant",
    "recreation",
    "religion",
    "structure",
)

_HOW_TO_GET = "get it with download_dataset.py of https://github.com/apple/ml-flair, and pass --data.data_dir"


class FLAIR(FederatedDataModule):
    """429,078 photographs, 256x256, each with some of 17 coarse or 1,628 fine labels; every client is a photographer.

    Reads ``labels_and_metadata.json``, ``label_relationship.txt`` and ``small_images/<image_id>.jpg`` (Song et al. 2022,
    https://arxiv.org/abs/2207.08869), which https://github.com/apple/ml-flair downloads. Training, validation and test users are
    disjoint: 41,131, 5,141 and 5,142 of them, with 345,879, 39,239 and 43,960 images.

    The metadata are read as a stream. Only the images of the selected users are decoded, once, into a memory-mapped file in
    ``<data_dir>/decoded``, which a further run completes after an interruption. All images take 84 GB.

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
        if decode not in ("first", "when read"):
            raise ValueError(f"FLAIR: decode must be 'first' or 'when read'; got {decode!r}")
        self.decode = decode
        at_least(self, 1, max_users=max_users, max_eval_users=max_eval_users, image_size=image_size)
        self.partitioner = self.partitioner or Natural()
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
                self._cache(part).fill()

    def load(self) -> Splits:
        return Splits(train=self._load("train"), test=self._load("test"), val=self._load("val"))

    def preprocess(self) -> Callable[[Tensor], Tensor]:
        return Preprocess(self.mean, self.std)

    def augment(self) -> Augment | None:
        return augmentation(self.augmentation)

    @cached_property
    def _images(self) -> dict[str, "_UserImages"]:
        path = self.data_dir / "labels_and_metadata.json"
        require_files("FLAIR", [path, self.data_dir / "small_images"], _HOW_TO_GET)
        parts = {part: _UserImages(fold(self.partition_seed, part), limit) for part, limit in self.max_users.items()}
        column = {name: i for i, name in enumerate(self.class_names)}
        key = "labels" if self.labels == "coarse" else "fine_grained_labels"
        for number, entry in enumerate(read_objects(path)):
            try:
                part, user, image, labels = (entry[name] for name in ("partition", "user_id", "image_id", key))
                if not (isinstance(user, str) and isinstance(image, str) and isinstance(labels, list)):
                    raise TypeError
                own = parts[part].of(user)
                if own is not None:
                    own.append((image, tuple(column[label] for label in labels)))
            except KeyError as error:
                raise ValueError(f"{path}: image {number} has an unknown or no {error}: {json.dumps(entry)[:200]}") from error
            except TypeError as error:
                wanted = f"an object with texts image_id, user_id and partition and a list {key}"
                raise ValueError(f"{path}: image {number} is not {wanted}: {json.dumps(entry)[:200]}") from error
        for part, images in parts.items():
            if not images.by_user:
                raise ValueError(f"{path} has no images of the partition {part!r}")
        seen: set[str] = set()
        for image, _ in chain.from_iterable(chain.from_iterable(images.by_user.values()) for images in parts.values()):
            if image in seen:
                raise ValueError(f"{path} lists the image {image!r} twice: get it again")
            seen.add(image)
        return parts

    def _cache(self, part: str) -> ImageCache:
        size = (self.image_size, self.image_size)
        files = [f"{image}.jpg" for images in self._images[part].in_order() for image, _ in images]
        return ImageCache(self.cache_dir, part, self.data_dir / "small_images", files, size)

    def _load(self, part: str) -> Samples:
        users = self._images[part].in_order()
        labels = [labels for images in users for _, labels in images]
        targets = np.zeros((len(labels), self.num_classes), dtype=np.float32)
        targets[np.repeat(np.arange(len(labels)), [len(own) for own in labels]), list(chain.from_iterable(labels))] = 1
        owners = np.repeat(np.arange(len(users)), [len(images) for images in users])
        cache = self._cache(part)
        images = cache.load() if self.decode == "first" else cache.load_when_read()
        return Samples(images, torch.from_numpy(targets), owners)


_Image = tuple[str, tuple[int, ...]]
"""An image's id and the columns of its labels. Python's garbage collector need not look into such tuples, as it would into lists."""


@dataclass
class _UserImages:
    """The images of the ``limit`` users with the smallest keys. Only the names of the other users are stored."""

    seed: int
    limit: int | None
    by_user: dict[str, list[_Image]] = field(default_factory=dict)
    _largest_first: list[tuple[int, str]] = field(default_factory=list)
    _refused: set[str] = field(default_factory=set)

    def of(self, user: str) -> list[_Image] | None:
        """The user's images so far, to append to, or None for a user who is not selected."""
        if user in self._refused:
            return None
        if user not in self.by_user:
            # The largest selected key only falls, so a refused or dropped user never returns: a user has all images stored, or none.
            self.by_user[user] = []
            heapq.heappush(self._largest_first, (-fold(self.seed, user), user))
            if self.limit is not None and len(self.by_user) > self.limit:
                dropped = heapq.heappop(self._largest_first)[1]
                del self.by_user[dropped]
                self._refused.add(dropped)
        return self.by_user.get(user)

    def in_order(self) -> list[list[_Image]]:
        """One user after another, so that a client's images lie together on disk."""
        return [self.by_user[user] for user in sorted(self.by_user)]


def read_objects(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file that holds a JSON list, one at a time: FLAIR's 429,078 would fill a gigabyte as Python objects."""
    decoder, text, position = json.JSONDecoder(), "", 0
    with reading(path), path.open(encoding="utf-8") as file:
        if not (text := file.read(_BLOCK)).lstrip().startswith("["):
            raise ValueError("it does not start with '[', as a list does")
        position = text.index("[") + 1
        while True:
            position = _skip(text, position)
            try:
                value, position = decoder.raw_decode(text, position)
            except json.JSONDecodeError:
                if text.startswith("]", position):
                    return
                # Either an object is cut off at the end of the block, or it is broken.
                block = file.read(_BLOCK)
                if not block or len(text) - position > 2 * _BLOCK:
                    raise
                text, position = text[position:] + block, 0
            else:
                yield value


_BLOCK = 2**22


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    return position


def _fine_label(line: str) -> str:
    """The first of the pair on a line of ``label_relationship.txt``, without the brackets, quotes and separators around it."""
    words = line.translate(str.maketrans("()[]{}'\"`,;:|>=", " " * 15)).split()
    return words[0]
