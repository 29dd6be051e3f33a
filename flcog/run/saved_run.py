"""A run's directory for other programs to read: its rounds, its description and its checkpoints. No model and no data are loaded."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Timer

from flcog.run import checkpoint
from flcog.run.directory import LAST
from flcog.run.metrics_rows import Row, read_rows
from flcog.run.record import read_config, read_record
from flcog.run.round_order import fault_in


@dataclass(frozen=True)
class SavedRun:
    """The files of one run.

    Args:
        directory: the run's directory.
    """

    directory: Path

    @property
    def table(self) -> Path:
        """``metrics.csv``, with one row per round."""
        return self.directory / "metrics.csv"

    @property
    def rows(self) -> list[Row]:
        """The rows up to the first damaged line; none for a run that ended in its first round."""
        return list(self._read()[0])

    @property
    def damage(self) -> str | None:
        """The first fault of ``metrics.csv``: a damaged line, or a round that is missing or there twice."""
        rows, damage = self._read()
        return damage or fault_in([row["round"] for row in rows], 1)

    @property
    def description(self) -> Mapping[str, Any]:
        """The content of ``run.yaml``; empty if the file is missing or damaged."""
        return self._parsed("run.yaml", read_record)

    @property
    def config(self) -> Mapping[str, Any]:
        """The content of ``config.yaml``; empty if the file is missing or damaged."""
        return self._parsed("config.yaml", read_config)

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

    def _parsed(self, name: str, read: Callable[[Path], Mapping[str, Any]]) -> Mapping[str, Any]:
        path = self.directory / name
        try:
            return _parse_once(read, self.directory, path.stat().st_mtime_ns if path.is_file() else 0)
        except ValueError:
            return {}

    def _read(self) -> tuple[list[Row], str | None]:
        if not self.table.is_file():
            return [], None
        about = self.table.stat()
        return _read_once(self.table, about.st_mtime_ns, about.st_size)


@functools.lru_cache(maxsize=4096)
def _read_once(table: Path, changed: int, size: int) -> tuple[list[Row], str | None]:
    return read_rows(table)


@functools.lru_cache(maxsize=4096)
def _parse_once(read: Callable[[Path], Mapping[str, Any]], directory: Path, changed: int) -> Mapping[str, Any]:
    return read(directory)
