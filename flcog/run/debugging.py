"""Options of Lightning's Trainer for finding faults and slow places: deterministic, detect_anomaly and profiler."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, PyTorchProfiler, SimpleProfiler

from flcog.core.lightning_packages import lightning_base

PROFILERS: dict[str, Callable[[], Profiler]] = {
    "simple": SimpleProfiler,
    "advanced": AdvancedProfiler,
    "pytorch": partial(PyTorchProfiler, schedule=None),  # the default schedule counts steps of a single model
}


@dataclass(frozen=True)
class Debugging:
    """torch's own checks while a run computes.

    Args:
        deterministic: whether torch uses deterministic algorithms alone; ``warn`` warns where it has none.
        detect_anomaly: whether autograd names the operation that gives NaN.
    """

    deterministic: bool | Literal["warn"] = False
    detect_anomaly: bool = False

    def __post_init__(self) -> None:
        if self.deterministic not in (False, True, "warn"):
            raise ValueError(f"deterministic must be true, false or warn; got {self.deterministic!r}")

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Switch the checks on, and back to what they were."""
        before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        if self.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=self.deterministic == "warn")
        try:
            with torch.autograd.set_detect_anomaly(True) if self.detect_anomaly else nullcontext():
                yield
        finally:
            if self.deterministic:
                torch.use_deterministic_algorithms(before, warn_only=warned)


def make_profiler(profiler: Profiler | str | None) -> Profiler:
    """The profiler that the user names or gives."""
    if profiler is None:
        return PassThroughProfiler()
    if lightning_base(profiler, "Profiler"):
        return profiler  # type: ignore[return-value]
    if not isinstance(profiler, str) or profiler not in PROFILERS:
        raise ValueError(
            f"profiler must be {', '.join(PROFILERS)} or a profiler of lightning.pytorch.profilers; got {profiler!r}"
        )
    return PROFILERS[profiler]()


def report(profiler: Profiler, directory: Path) -> None:
    """Print a profiler's measurements. One that writes files writes them into the run's directory, unless it was given another."""
    if isinstance(profiler, PassThroughProfiler):
        return
    if profiler.dirpath is None:
        profiler.dirpath = directory
    profiler.describe()
    profiler.teardown(stage="fit")
