"""Greys of 16 bits in picture files. Pillow's own conversion to 8 bits cuts off all values above 255."""

import warnings

import numpy as np
from PIL import Image

FULL = 2**16 - 1
"""The white of 16-bit greys."""

NO_RANGE = ("I", "F")
"""Pillow's names for whole numbers and floats whose black and white are unknown."""


def greys_of(picture: Image.Image) -> np.ndarray | None:
    """Return the values of a picture of 16-bit greys, from 0 to ``FULL``; None for other pictures."""
    # Pillow has a mode of 32 bits for 16-bit PGM files and, in older versions, for PNG files.
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in ("PNG", "PPM")):
        return np.asarray(picture).astype(np.int32)
    return None


def in_bytes(picture: Image.Image, where: str) -> Image.Image:
    """Return a picture of 16-bit greys with 8 bits, and other pictures unchanged.

    Args:
        picture: any picture.
        where: its folder, for a warning of pictures that use 12 bits.
    """
    greys = greys_of(picture)
    if greys is None:
        return picture
    if 0 < greys.max() < 2**12:
        warnings.warn(
            f"{where} has pictures of 16 bits without values above {2**12 - 1}, which become nearly black: multiply pictures of 12 bits "
            f"by 16, because white is {FULL}",
            stacklevel=2,
        )
    return Image.fromarray(((greys + 128) // 257).astype(np.uint8))
