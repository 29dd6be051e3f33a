"""Image files decoded once into a memory-mapped array, so that training never waits for JPEGs."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from filelock import FileLock
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from flcog.core.files import clear_errors, make_folder, put_in_place, replacing
from flcog.datamodules.files import MADE_AGAIN, reading

IN_MEMORY_BYTES = 2 * 2**30
"""Sets up to this size are read into memory, and go to the device; larger ones stay on disk and are read batch by batch."""

REMEDY = "point cache_dir at a larger disk, or ask for fewer or smaller images"

_CHUNK_BYTES = 64 * 2**20
"""So much is decoded between two marks of progress: what an interrupted run decodes again at most."""


@dataclass(frozen=True)
class ImageCache:
    """Decoded images as one ``.npy`` file [N, H, W, C] of uint8, named after what is in it.

    While it is being filled, the file is called ``.partial`` and a second one marks the images that are on disk, so a killed run
    goes on where it stopped. The final name exists only once every image is there.

    Args:
        folder: where the file is kept.
        name: a readable start of its name.
        root: the folder that the images' names start from.
        files: the images, in the order of the array's rows.
        size: height and width to scale to.
        shape_by: what becomes of an image of another size: it is stretched, cropped about the centre, or rejected.
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
        for part in (*self.files, *self.stamps):
            digest.update(part.encode() + b"\0")
        return self.folder / f"{self.name}-{self.size[0]}x{self.size[1]}-{digest.hexdigest()[:12]}.npy"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.files), *self.size, len(self.mode)

    def load(self) -> Tensor | np.ndarray:
        """The images: a tensor if they fit into memory, else a read-only memory-mapped array. Decodes what is missing."""
        self.fill()
        with reading(self.path, MADE_AGAIN):
            images = np.load(self.path, mmap_mode="r")
            if images.shape != self.shape or images.dtype != np.uint8:
                raise ValueError(f"it holds {images.dtype} of shape {images.shape}, not bytes of shape {self.shape}")
        return torch.from_numpy(np.array(images)) if images.nbytes <= IN_MEMORY_BYTES else images

    def fill(self) -> None:
        """Decode the images that are not in the cache yet."""
        if self.path.exists():
            return
        with clear_errors(self.folder, REMEDY):
            make_folder(self.folder)
        # The processes of a run start together: one decodes, the others wait. The lock of a killed process is void.
        with FileLock(self.folder / ".lock"):
            if not self.path.exists():
                self._fill(self.path)

    def _fill(self, path: Path) -> None:
        partial, marks = path.with_suffix(".partial"), path.with_suffix(".marks")
        if not (partial.exists() and marks.exists() and marks.stat().st_size == len(self.files)):
            self._create(partial, marks)
        with reading(partial, MADE_AGAIN):
            images = np.lib.format.open_memmap(partial, mode="r+")
            if images.shape != self.shape:
                raise ValueError(f"it has shape {images.shape}, not {self.shape}")
        done = np.memmap(marks, dtype=np.uint8, mode="r+")
        pending = np.flatnonzero(done == 0)
        chunk = max(1, _CHUNK_BYTES // int(np.prod(self.shape[1:])))
        columns = (TextColumn("decoding {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress, ThreadPoolExecutor(os.cpu_count()) as pool:
            task = progress.add_task(self.name, total=len(self.files), completed=len(self.files) - len(pending))
            for start in range(0, len(pending), chunk):
                rows = pending[start : start + chunk]
                # Pillow decodes without holding the interpreter's lock.
                for row, image in zip(rows, pool.map(self._decode, rows), strict=True):
                    images[row] = image
                # Pixels are flushed before their marks: a crash must not leave a mark for an image that is not on disk.
                images.flush()
                done[rows] = 1
                done.flush()
                progress.advance(task, len(rows))
        put_in_place(partial, path, REMEDY)
        marks.unlink()

    def _create(self, partial: Path, marks: Path) -> None:
        needed, free = int(np.prod(self.shape)), shutil.disk_usage(self.folder).free
        # A full disk would kill the process as it touches the mapped file, without a message.
        if needed > free:
            raise ValueError(
                f"decoding {len(self.files)} images takes {needed / 1e9:.1f} GB in {self.folder}, where {free / 1e9:.1f} GB are "
                f"free: {REMEDY}"
            )
        with clear_errors(partial, REMEDY):
            np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=self.shape)
        with replacing(marks, remedy=REMEDY) as file:
            file.write(bytes(len(self.files)))

    def _decode(self, row: int) -> np.ndarray:
        file = self.root / self.files[row]
        with reading(file), Image.open(file) as opened:
            image = opened.convert(self.mode)
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
