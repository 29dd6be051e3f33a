"""A run's directory for other programs to read: its rounds, its description and its checkpoints. No model and no data are loaded."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Timer

from flcog.core.yaml_files import load_yaml
from flcog.run import checkpoint
from flcog.run.directory import LAST
from flcog.run.metrics_table import Row, read_rows


@dataclass(frozen=True)
class SavedRun:
    """The files of one run.

    Args:
        directory: the run's directory.
    """

    directory: Path

    def file(self, name: str) -> Path:
        """One of its files. Refuse a folder without it."""
        if not (self.directory / name).is_file():
            if name == "config.yaml" and (self.directory / "run.yaml").is_file():
                raise ValueError(
                    f"{self.directory} was made in Python and has no {name}: use the trainer's methods with its ckpt_path"
                )
            raise ValueError(f"{self.directory} holds no {name}: give the directory of a run, such as runs/20260131-120000")
        return self.directory / name

    @property
    def table(self) -> Path:
        """``metrics.csv``, with one row per round."""
        return self.directory / "metrics.csv"

    @property
    def rows(self) -> list[Row]:
        """The rows up to the first damaged line; none for a run that ended in its first round."""
        return list(_parsed(read_rows, self.table) or [])

    @property
    def description(self) -> Mapping[str, Any]:
        """The content of ``run.yaml``; empty if the file is missing or damaged."""
        return _parsed(_entries, self.directory / "run.yaml") or {}

    @property
    def config(self) -> Mapping[str, Any]:
        """The content of ``config.yaml``; empty if the file is missing or damaged."""
        return _parsed(_entries, self.directory / "config.yaml") or {}

    @property
    def can_resume(self) -> bool:
        """Whether it has a checkpoint to resume from."""
        return (self.directory / LAST).is_file()

    @property
    def paused_by(self) -> str:
        """``StopAfter`` or ``max_time`` if one of them ended it before its last round; else empty."""
        trainer, done = self.config.get("trainer", {}), self.rows[-1]["round"] if self.rows else 0
        if done >= trainer.get("rounds", 0):
            return ""
        parts = [part for part in trainer.get("callbacks") or () if isinstance(part, dict)]
        stops = [part["init_args"]["round"] for part in parts if part["class_path"].endswith(".StopAfter")]
        if stops and done >= min(stops):
            return "StopAfter"
        if (limit := trainer.get("max_time")) is None:
            return ""
        timer = checkpoint.peek(self.directory / LAST).get("callbacks", {}).get("Timer", {"time_elapsed": {}})
        return "max_time" if timer["time_elapsed"].get("train", 0.0) >= Timer(limit)._duration else ""


def _entries(path: Path) -> dict[str, Any]:
    content = load_yaml(path)
    return {name: value for name, value in content.items() if value is not None} if isinstance(content, dict) else {}


def _parsed(read: Callable[[Path], Any], path: Path) -> Any:
    """The content of a file, read once for each of its versions; None if it is missing or damaged."""
    try:
        about = path.stat()
        return _read_once(read, path, about.st_mtime_ns, about.st_size)
    except (OSError, ValueError):
        return None


@functools.lru_cache(maxsize=4096)
def _read_once(read: Callable[[Path], Any], path: Path, changed: int, size: int) -> Any:
    return read(path)
