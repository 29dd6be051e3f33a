"""Synthetic sets on disk: generated once for each setting and client, read by later runs, and exported as images."""

import csv
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from PIL import Image
from torch import Tensor

from flcog.callbacks.fedssyn.generators.base import DataGenerator, Form, Log, finite, matching_labels, subset_of
from flcog.core.files import arrays_in, replacing, replacing_folder, short, write_table, write_yaml
from flcog.core.global_streams import seeded
from flcog.core.precision import default_dtype
from flcog.core.randomness import fold
from flcog.data import Federation

Set = tuple[Tensor, Tensor]
"""Inputs as the data set stores them, and labels."""

FORMAT = 2
REMEDY = "free space or choose another directory"


@dataclass(frozen=True)
class Synthesis:
    """The settings of a federation's synthetic sets.

    They determine the sets to the bit on one kind of device and version of torch. Sets on disk are used even if they were
    generated on another device or with secret noise.
    """

    generator: DataGenerator
    rho: float
    count: int
    seed: int

    def about(self, federation: Federation) -> dict[str, Any]:
        """Everything that the sets depend on; its hash names their folder."""
        return {
            "format": FORMAT,
            "generator": repr(self.generator),
            "rho": self.rho,
            "images_per_client": self.count,
            "seed": self.seed,
            "num_classes": federation.num_classes,
            "partition": federation.partition.hash,
            "data": fingerprint(federation),
        }

    def make(self, federation: Federation, client: int, log: Log) -> Set:
        """Train a client's generator and draw its synthetic set, on the CPU. All random draws follow from the seed and the client."""
        train, device = federation.train, federation.train.targets.device
        rows = torch.from_numpy(subset_of(federation, client, self.rho, self.seed)).to(device)
        form, labels = Form.of(train), train.targets[rows]
        wanted = matching_labels(labels, self.count, federation.num_classes)
        with seeded(fold(self.seed, client, "generator"), device), default_dtype(torch.float32):
            sample = self.generator.train(form.encode(train.gather(rows).to(device)), labels, federation.num_classes, log)
            with torch.no_grad():
                parts = [form.decode(finite(sample(part.to(device)), client)) for part in wanted.split(500)]
        return torch.cat(parts), wanted


def fingerprint(federation: Federation) -> str:
    """Eight hex digits of a training set: its shape, its targets and its inputs, each of which is read once from memory or the disk."""
    train, inputs = federation.train, federation.train.inputs
    digest = hashlib.sha256(f"{tuple(inputs.shape)} {inputs.dtype}".encode())
    for values in (inputs, train.targets):
        for first in range(0, len(values), 10000):
            part = values[first : first + 10000]
            array = part.cpu().numpy() if isinstance(part, Tensor) else part
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:8]


def folder_of(about: dict[str, Any], root: Path) -> Path:
    """The folder of the sets with these properties."""
    return root / hashlib.sha256(repr(sorted(about.items())).encode()).hexdigest()[:12]


def synthetic_sets(
    synthesis: Synthesis, federation: Federation, root: Path | None, clients: Sequence[int] | None = None
) -> tuple[list[Set], Path | None]:
    """The synthetic set of each of some clients, or of all, without deleted images, and the folder.

    Sets on disk are read, and the others generated: a killed run continues with the first client that was not finished. Processes and
    runs that need the same sets at once divide them: each passes over the clients that another one is working on, and then waits for them.
    """
    clients = range(federation.num_clients) if clients is None else clients
    if root is None:
        return [synthesis.make(federation, client, lambda epoch, figures: None) for client in clients], None
    about = synthesis.about(federation)
    folder, sets = folder_of(about, root), dict[int, Set]()
    if missing := [client for client in clients if not (folder / f"{_name(client)}.npz").is_file()]:
        print(f"synthetic data: making {len(missing)} of {len(clients)} sets in {short(folder)}", flush=True)
    write_yaml(folder / "about.yaml", about, REMEDY)
    for seconds in (0, -1):  # without waiting, and then as long as it takes
        for client in [client for client in clients if client not in sets]:
            file = folder / f"{_name(client)}.npz"
            with suppress(Timeout), FileLock(folder / f".{_name(client)}.lock", timeout=seconds):
                if not file.is_file():
                    _store(synthesis, federation, client, file)
                sets[client] = _keep_undeleted(_read(file), folder, client)
    return [sets[client] for client in clients], folder


def _store(synthesis: Synthesis, federation: Federation, client: int, file: Path) -> None:
    """Generate the set of a client. The log of its training is written before it, so that no set lacks its log."""
    rows: list[dict[str, float]] = []
    made = synthesis.make(federation, client, lambda epoch, figures: rows.append({"client": client, "epoch": epoch, **figures}))
    write_table(file.with_suffix(".csv"), rows, remedy=REMEDY)
    with replacing(file, remedy=REMEDY) as opened:
        np.savez(opened, inputs=made[0].numpy(), labels=made[1].numpy())
    print(f"  client {client + 1} of {federation.num_clients}: {len(made[1])} samples", flush=True)


def export_images(folder: Path, federation: Federation) -> tuple[Path, int, int]:
    """Write every synthetic image as ``images/client-0000/<class>/<number>.png``, once; deleted images are not written again.

    Returns the folder of the images, the number of images that are left, and the number before any were deleted.
    """
    form, images = Form.of(federation.train), folder / "images"
    if not form.images:
        raise ValueError(f"only images can be exported, and these samples are rows of a table: read them as .npz in {folder}")
    sets = [_read(folder / f"{_name(client)}.npz") for client in range(federation.num_clients)]
    total = sum(len(labels) for _, labels in sets)
    if images.is_dir():
        return images, sum(1 for _ in images.glob("client-*/*/*.png")), total
    names = federation.class_names or tuple(map(str, range(federation.num_classes)))
    with replacing_folder(images, REMEDY) as aside:
        for client, (inputs, labels) in enumerate(sets):
            (aside / _name(client)).mkdir(parents=True)
            for label in labels.unique().tolist():
                (aside / _name(client) / _file_name(names[label])).mkdir()
            for row, (pixels, label) in enumerate(zip(inputs, labels.tolist(), strict=True)):
                values = (pixels.double() * (255 / form.white)).round().to(torch.uint8).numpy()
                path = aside / _name(client) / _file_name(names[label]) / f"{row:05d}.png"
                Image.fromarray(values.squeeze(-1) if values.shape[-1] == 1 else values).save(path)
    return images, total, total


def training_logs(folder: Path) -> list[dict[str, float]]:
    """The rows of all clients' training: client, epoch, loss, and epsilon if training was private."""
    rows = []
    for path in sorted(folder.glob("client-*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            rows += [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    return rows


def _keep_undeleted(made: Set, folder: Path, client: int) -> Set:
    """The samples with an image that was not deleted, if images were exported."""
    images = folder / "images"
    if not images.is_dir():
        return made
    kept = sorted(int(path.stem) for path in (images / _name(client)).glob("*/*.png") if path.stem.isdigit())
    rows = torch.tensor([row for row in kept if row < len(made[1])], dtype=torch.long)
    return made[0][rows], made[1][rows]


def _name(client: int) -> str:
    """The name of a client's files.

    >>> _name(3)
    'client-0003'
    """
    return f"client-{client:04d}"


def _file_name(class_name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in class_name)


def _read(path: Path) -> Set:
    with arrays_in(path) as arrays:
        return torch.from_numpy(arrays["inputs"]), torch.from_numpy(arrays["labels"])
