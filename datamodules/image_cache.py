"""Image files decoded once into a memory-mapped array, so that training never waits for JPEGs."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from flcog.datamodules.deep_greys import NO_RANGE, in_bytes
from flcog.datamodules.files import reading
from flcog.datamodules.row_file import IN_MEMORY_BYTES, CheckedRows, RowFile
from flcog.datamodules.rows_when_read import RowsWhenRead

REMEDY = "point cache_dir at a larger disk, or ask for fewer or smaller images"

MAY_HAVE_16_BITS = (".png", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True)
class ImageCache:
    """Decoded images as one ``.npy`` file [N, H, W, C] of uint8, whose name depends on its content.

    An interrupted run continues later; see :class:`flcog.datamodules.row_file.RowFile`.

    Args:
        folder: where the file is kept.
        name: a readable start of its name.
        root: the folder that the images' names start from.
        files: the images, in the order of the array's rows.
        size: height and width to scale to.
        shape_by: the treatment of an image of another size: it is stretched, cropped about the centre, or rejected.
        mode: Pillow's name for the pixels: "RGB", or "L" for grey.
        stamps: more that the images depend on, e.g. the files' sizes and times; a cache made for other stamps is not used.
    """

    folder: Path
    name: str
    root: Path
    files: Sequence[str]
    size: tuple[int, int]
    shape_by: Literal["stretch", "crop", "reject"] = "stretch"
    mode: Literal["RGB", "L"] = "RGB"
    stamps: Sequence[str] = ()

    @cached_property
    def path(self) -> Path:
        digest = hashlib.sha256(repr((self.size, self.shape_by, self.mode)).encode())
        for part in chain(self.files, self.stamps):
            digest.update(part.encode() + b"\0")
        if any(file.lower().endswith(MAY_HAVE_16_BITS) for file in self.files):
            digest.update(b"16-bit greys are scaled")
        return self.folder / f"{self.name}-{self.size[0]}x{self.size[1]}-{digest.hexdigest()[:12]}.npy"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.files), *self.size, len(self.mode)

    def load(self) -> Tensor | CheckedRows:
        """Return the images: a tensor if they fit into memory, else rows that stay on disk. Decodes missing images."""
        self.fill()
        images = self._file.load()
        return torch.from_numpy(images[:]) if images.nbytes <= IN_MEMORY_BYTES else images

    def load_when_read(self) -> RowsWhenRead:
        """Return the images, each of which is decoded when it is first read."""
        return RowsWhenRead(self.path.with_suffix(".rows"), self.shape, self._decode, REMEDY)

    def fill(self) -> None:
        """Decode the images that are not in the cache yet."""
        # Pillow decodes without holding the interpreter's lock.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self._file.fill(lambda rows: pool.map(self._decode, rows), f"decoding {self.name}")

    @property
    def _file(self) -> RowFile:
        return RowFile(self.path, self.shape, np.dtype(np.uint8), REMEDY)

    def _decode(self, row: int) -> np.ndarray:
        file = self.root / self.files[row]
        with reading(file), Image.open(file) as opened:
            eight_bits = in_bytes(opened, str(self.root))
            image = None if eight_bits.mode in NO_RANGE else eight_bits.convert(self.mode)
        if image is None:
            raise ValueError(
                f"{file} has {'floats' if opened.mode == 'F' else '32-bit numbers'} as pixels, and their black and white are unknown: "
                "save it with 8 or 16 bits"
            )
        height, width = self.size
        if image.size != (width, height):
            if self.shape_by == "reject":
                raise ValueError(
                    f"{file} is {image.width}x{image.height}, unlike the first image of {width}x{height}: set an image_size"
                )
            fit = ImageOps.fit if self.shape_by == "crop" else Image.Image.resize
            image = fit(image, (width, height), Image.Resampling.BILINEAR)
        return np.asarray(image).reshape(self.shape[1:])


def size_of(file: Path) -> tuple[int, int]:
    """Height and width, from the file's header."""
    with reading(file), Image.open(file) as image:
        return image.height, image.width


def stamp_of(status: os.stat_result) -> str:
    """A file's size and time of change."""
    return f"{status.st_size} {status.st_mtime_ns}"
