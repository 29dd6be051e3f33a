"""New inputs for predictions, in the form in which a data set stores its own: of tables, pictures, texts and arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from flcog.core.trees import first_leaf
from flcog.data import FederatedDataModule, NewInputs
from flcog.datamodules.decoded_images import DecodedImages
from flcog.datamodules.files import reading, require_files
from flcog.datamodules.image_folders import EXTENSIONS, images_in
from flcog.datamodules.table import read_frame


def read_new(data: FederatedDataModule, given: Any) -> NewInputs:
    """New inputs of a file, a folder of pictures, a data frame, a list of texts or paths, or arrays as the data set stores them."""
    names: Any = None
    if isinstance(given, str | Path):
        given, names = _opened(Path(given))
    if hasattr(given, "columns"):
        return data.new_inputs(given)
    if not (isinstance(given, list) and given and all(isinstance(row, str | Path) for row in given)):
        return NewInputs(given, range(len(first_leaf(given))))
    files, own = [str(row) for row in given], first_leaf(data.federation.train.inputs)
    if not all(file.lower().endswith(EXTENSIONS) for file in files):
        return data.new_inputs(files)
    require_files("predict", map(Path, files), "correct the paths of the pictures")
    stored = str(getattr(own, "dtype", "")).endswith("uint8") and own.ndim == 4 and own.shape[-1] in (1, 3)
    return NewInputs(_decoded(data, files, own) if stored else data.new_inputs(files).inputs, names or files)


def _opened(path: Path) -> tuple[Any, list[str] | None]:
    """The content of a file or a folder, and the pictures' names."""
    require_files("predict", [path], "correct the path of the inputs")
    if path.is_dir():
        names = sorted(Path(name).as_posix() for name in images_in(path, "."))
        if not names:
            raise ValueError(f"{path} has no images ({', '.join(EXTENSIONS)})")
        return [path / name for name in names], names
    if path.suffix.lower() in EXTENSIONS:
        return [path], [path.name]
    if path.suffix == ".txt":
        return path.read_text(encoding="utf-8").splitlines(), None
    return (read_arrays(path) if path.suffix in (".npy", ".npz") else read_frame(path)), None


def read_arrays(path: Path) -> Any:
    """The array in the file, or a dictionary of several arrays."""
    with reading(path, "write it by numpy.save or numpy.savez"):
        content = np.load(path, mmap_mode="r", allow_pickle=False)
        arrays = {name: content[name] for name in content.files} if isinstance(content, np.lib.npyio.NpzFile) else {"": content}
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def _decoded(data: FederatedDataModule, files: list[str], own: Any) -> torch.Tensor:
    """Pictures in the size and the colours of a data set's own, scaled as the data set scales them."""
    height, width, channels = own.shape[1:]
    images = DecodedImages(
        Path(), "", Path(), files, (height, width), getattr(data, "shape_by", "crop"), "L" if channels == 1 else "RGB"
    )
    return torch.from_numpy(np.stack([*images.decoded(np.arange(len(files)))]))
