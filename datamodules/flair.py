"""FLAIR: photographs of 51,414 Flickr users with several labels each."""

import json
from array import array
from collections.abc import Iterator, Sequence
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
from flcog.datamodules.partitioners import Natural

COARSE_LABELS = (
    "animal", "art", "celebration", "equipment", "fire", "food", "games", "interior_room", "light", "liquid", "material", "music",
    "outdoor", "plant", "recreation", "religion", "structure",
)  # fmt: skip

_HOW_TO_GET = "get it with download_dataset.py of https://github.com/apple/ml-flair, and pass --data.data_dir"


class FLAIR(AugmentedImages):
    """429,078 photographs, 256x256, each with some of 17 coarse or 1,628 fine labels; every client is a photographer.

    Reads ``labels_and_metadata.json``, ``label_relationship.txt`` and ``small_images/<image_id>.jpg`` (Song et al. 2022,
    https://arxiv.org/abs/2207.08869), which https://github.com/apple/ml-flair downloads. Training, validation and test users are
    disjoint: 41,131, 5,141 and 5,142 of them, with 345,879, 39,239 and 43,960 images.

    The metadata are read as a stream. Only the images of the selected users are decoded, once, into a memory-mapped file in
    ``<data_dir>/decoded``, which a further run completes after an interruption. All images take 84 GB. Delete this folder if you
    change images: it is used without a look at them, so that they need not be there.

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
        kwargs["partitioner"] = kwargs.get("partitioner") or Natural()
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
    def _images(self) -> dict[str, "_Images"]:
        path = self.data_dir / "labels_and_metadata.json"
        require_files("FLAIR", [path, self.data_dir / "small_images"], _HOW_TO_GET)
        parts = {part: _Index(fold(self.partition_seed, part), limit) for part, limit in self.max_users.items()}
        column = {name: i for i, name in enumerate(self.class_names)}
        key = "labels" if self.labels == "coarse" else "fine_grained_labels"
        for number, entry in enumerate(read_objects(path)):
            try:
                part, user, image, labels = (entry[name] for name in ("partition", "user_id", "image_id", key))
                parts[part].add(user, image, [column[label] for label in labels])
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}: image {number} cannot be read ({error!r}): {json.dumps(entry)[:200]}") from error
        images = {part: index.images() for part, index in parts.items()}
        for part, own in images.items():
            if not len(own.names):
                raise ValueError(f"{path} has no images of the partition {part!r}")
        return images

    def _decoded(self, part: str) -> DecodedImages:
        files = _Files(self._images[part].names)
        return DecodedImages(self.cache_dir, part, self.data_dir / "small_images", files, (self.image_size, self.image_size))

    def _load(self, part: str) -> Samples:
        images, decoded = self._images[part], self._decoded(part)
        targets = np.zeros((len(images.names), self.num_classes), dtype=np.float32)
        targets[images.labelled, images.labels] = 1
        return Samples(decoded.load() if self.decode == "first" else decoded.rows, torch.from_numpy(targets), images.owners)


class _Images(NamedTuple):
    """The images of some users, one user after another, so that a client's images lie together on disk.

    They are arrays, because Python's objects would fill 300 bytes for each image.
    """

    names: np.ndarray  # the images' ids in UTF-8
    owners: np.ndarray  # the number of each image's user, in the order of the users' names
    labelled: np.ndarray  # an image's place, for all labels of all images
    labels: np.ndarray  # and the column of the label


class _Files(Sequence[str]):
    """The names of the images' files, made when they are read."""

    def __init__(self, names: np.ndarray) -> None:
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, place: Any) -> Any:
        return f"{self._names[place].decode()}.jpg"


class _Index:
    """Collects images, and returns those of the ``limit`` users with the smallest keys."""

    def __init__(self, seed: int, limit: int | None) -> None:
        self._seed, self._limit = seed, limit
        self._numbers: dict[str, int] = {}
        """A number of each user, in the order of the file."""
        self._names, self._ends, self._owners = bytearray(), array("q", [0]), array("i")
        self._labelled, self._labels = array("i"), array("H")

    def add(self, user: str, image: str, labels: list[int]) -> None:
        self._labelled.extend([len(self._owners)] * len(labels))
        self._labels.extend(labels)
        self._owners.append(self._numbers.setdefault(user, len(self._numbers)))
        self._names += image.encode()
        self._ends.append(len(self._names))

    def images(self) -> _Images:
        users = sorted(self._numbers)
        if self._limit is not None:
            users = sorted(sorted(users, key=lambda user: fold(self._seed, user))[: self._limit])
        place_of = np.full(len(self._numbers), -1)
        place_of[[self._numbers[user] for user in users]] = np.arange(len(users))
        owners = place_of[np.asarray(self._owners)]
        rows = np.argsort(owners, kind="stable")[np.count_nonzero(owners < 0) :]
        place = np.full(len(owners), -1, dtype=np.int32)
        place[rows] = np.arange(len(rows))
        labelled = place[np.asarray(self._labelled)]
        return _Images(self._padded()[rows], owners[rows], labelled[labelled >= 0], np.asarray(self._labels)[labelled >= 0])

    def _padded(self) -> np.ndarray:
        """The names of all images as one array."""
        ends = np.asarray(self._ends)
        lengths = np.diff(ends)
        padded = np.zeros((len(lengths), lengths.max(initial=1)), dtype=np.uint8)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = self._names
        return padded.view(f"S{padded.shape[1]}")[:, 0]


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
