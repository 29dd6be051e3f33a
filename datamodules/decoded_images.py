"""Image files decoded once into a file of rows, so that training never waits for JPEGs."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from flcog.datamodules.files import reading
from flcog.datamodules.row_file import IN_MEMORY_BYTES, RowFile

FULL = 2**16 - 1
"""The white of 16-bit greys."""

AT_ONCE = 1024
"""The images that wait for a thread at a time."""


@dataclass(frozen=True)
class DecodedImages:
    """Images as rows [H, W, C] of bytes, in a file that is named after the images' names and size."""

    folder: Path
    name: str
    root: Path
    files: Sequence[str]  # named from the root, in the order of the rows
    size: tuple[int, int]  # height and width to scale to
    shape_by: Literal["stretch", "crop", "reject"] = "stretch"
    mode: Literal["RGB", "L"] = "RGB"

    @cached_property
    def rows(self) -> RowFile:
        """The images, each of which is decoded when it is first read."""
        digest = hashlib.sha256(f"{self.shape_by} {self.mode}".encode())
        for file in self.files:
            digest.update(file.encode() + b"\0")
        path = self.folder / f"{self.name}-{self.size[0]}x{self.size[1]}-{digest.hexdigest()[:8]}.rows"
        return RowFile(path, (len(self.files), *self.size, len(self.mode)), np.dtype(np.uint8), self.decoded)

    def fill(self) -> None:
        """Decode the images that are not in the file yet."""
        self.rows.fill(f"decoding {self.name}")

    def load(self) -> Tensor | RowFile:
        """Return the images: a tensor if they fit into memory, else rows that stay on disk. Decodes missing images."""
        self.fill()
        return torch.from_numpy(self.rows[:]) if self.rows.nbytes <= IN_MEMORY_BYTES else self.rows

    def decoded(self, numbers: np.ndarray) -> Iterator[np.ndarray]:
        """Decode the images of these rows."""
        # Pillow decodes without holding the interpreter's lock.
        with ThreadPoolExecutor(min(len(numbers), os.cpu_count() or 1)) as pool:
            for start in range(0, len(numbers), AT_ONCE):
                yield from pool.map(self._decode, numbers[start : start + AT_ONCE].tolist())

    def _decode(self, row: int) -> np.ndarray:
        file = self.root / self.files[row]
        with reading(file), Image.open(file) as opened:
            greys = greys_of(opened)
            image = opened if greys is None else Image.fromarray(((greys + 128) // 257).astype(np.uint8))
            if image.mode in ("I", "F"):
                raise ValueError(
                    f"its pixels are of mode {image.mode}, whose black and white are unknown: save it with 8 or 16 bits"
                )
            image = image.convert(self.mode)
        height, width = self.size
        if image.size != (width, height):
            if self.shape_by == "reject":
                raise ValueError(
                    f"{file} is {image.width}x{image.height}, unlike the first image of {width}x{height}: set an image_size"
                )
            fit = ImageOps.fit if self.shape_by == "crop" else Image.Image.resize
            image = fit(image, (width, height), Image.Resampling.BILINEAR)
        return np.asarray(image).reshape(height, width, len(self.mode))


def size_of(file: Path) -> tuple[int, int]:
    """Height and width, from the file's header."""
    with reading(file), Image.open(file) as image:
        return image.height, image.width


def greys_of(picture: Image.Image) -> np.ndarray | None:
    """The values of a picture of 16-bit greys, from 0 to ``FULL``, of which Pillow's own conversion to 8 bits cuts off most.

    None for other pictures.
    """
    # Pillow has a mode of 32 bits for 16-bit PGM files and, in older versions, for PNG files.
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in ("PNG", "PPM")):
        return np.asarray(picture).astype(np.int32)
    return None
