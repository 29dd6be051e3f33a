"""Measures FLAIR with a full-size index of 1,000 generated JPEGs: the times to open it, to decode and to train a round, and the memory.

    python benchmarks/flair_at_full_size.py FOLDER --users 200 --decode "when read"

The script writes the index (429,078 images of 51,414 users, as in FLAIR) and the images, which are hard links to 1,000 files, to FOLDER.
A second call uses them again. The script prints one line for each step, with its time and the memory of the process after it, without the
pages of mapped files.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from flcog import FederatedTrainer, MultiLabelClassifier
from flcog.datamodules import FLAIR
from flcog.datamodules.flair import COARSE_LABELS
from flcog.models import SimpleCNN

PARTS = {"train": (345_879, 41_131), "val": (39_239, 5_141), "test": (43_960, 5_142)}
"""The number of images and users of each partition: Song et al. 2022, https://arxiv.org/abs/2207.08869."""

FILES = 1_000


def make_index(folder: Path, parts: dict[str, tuple[int, int]]) -> list[str]:
    """Write the index in FLAIR's format, with the users' images in a mixed order. Returns the images' names."""
    rng, entries = np.random.default_rng(0), list[dict[str, Any]]()
    fine = [f"{label}_{number}" for label in COARSE_LABELS for number in range(95)]
    pairs = [f"({name}, {name.rpartition('_')[0]})" for name in fine] + [f"({label}, {label})" for label in COARSE_LABELS]
    (folder / "label_relationship.txt").write_text("\n".join(pairs) + "\n")
    for part, (images, users) in parts.items():
        share = rng.pareto(1.5, users) + 0.1
        sizes = 1 + rng.multinomial(images - users, share / share.sum())
        for user in np.repeat(np.arange(users), sizes).tolist():
            labels = sorted({fine[i] for i in rng.integers(len(fine), size=3).tolist()})
            entries.append(
                {
                    "user_id": f"{part}{user}@N00",
                    "image_id": f"{14_913_474_848 + len(entries)}",
                    "labels": sorted({label.rpartition("_")[0] for label in labels}),
                    "partition": part,
                    "fine_grained_labels": labels,
                }
            )
    order = rng.permutation(len(entries)).tolist()
    (folder / "labels_and_metadata.json").write_text(json.dumps([entries[i] for i in order], indent=2))
    return [str(entry["image_id"]) for entry in entries]


def make_images(folder: Path, names: list[str], files: int) -> None:
    """Write ``files`` JPEGs of 256 x 256 pixels, and make every name a hard link to such a JPEG."""
    rng = np.random.default_rng(1)
    (folder / "originals").mkdir()
    (folder / "small_images").mkdir()
    for number in range(files):
        coarse = Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        coarse.resize((256, 256), Image.Resampling.BICUBIC).save(folder / "originals" / f"{number}.jpg", quality=90)
    for place, name in enumerate(names):
        os.link(folder / "originals" / f"{place % files}.jpg", folder / "small_images" / f"{name}.jpg")


@contextmanager
def measured(step: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    took, status = time.perf_counter() - began, Path("/proc/self/status").read_text()
    memory = int(status.partition("RssAnon:")[2].split()[0]) / 1024
    print(f"{step}: {took:.2f} s, {memory:,.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--users", type=int, default=None, help="training users; all of them by default")
    parser.add_argument("--eval_users", type=int, default=100, help="users of the validation and of the test set")
    parser.add_argument("--image_size", type=int, default=64)
    parser.add_argument("--decode", choices=("first", "when read"), default="first")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if not (given.folder / "small_images").exists():
        given.folder.mkdir(parents=True, exist_ok=True)
        with measured("write the index and the links"):
            make_images(given.folder, make_index(given.folder, PARTS), FILES)
    with measured("import"):
        trainer = FederatedTrainer(
            rounds=given.rounds,
            clients_per_round=10,
            local_steps=2,
            eval_every=0,
            logger=False,
            accelerator="cpu",
            default_root_dir=str(given.folder / "runs"),
        )
        options = {"max_users": given.users, "max_eval_users": given.eval_users, "image_size": given.image_size}
        data = FLAIR(str(given.folder), decode=given.decode, batch_size=16, **options)
    with measured("open the index"):
        images = data._images["train"]
    print(f"{len(images):,} training images of {len({image.user for image in images}):,} users", flush=True)
    with measured("decode"):
        data.prepare_data()
    with measured("set up"):
        data.setup()
    with measured(f"{given.rounds} rounds with start-up"):
        trainer.fit(MultiLabelClassifier(SimpleCNN(3, 17, image_size=given.image_size)), data)
    times = sorted(row["time/round"] for row in trainer.history)
    print(f"a round took {times[len(times) // 2]:.3f} s (median)")


if __name__ == "__main__":
    main()
