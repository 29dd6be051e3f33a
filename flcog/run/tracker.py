"""One tracker of a run: any Lightning logger, with everything that it writes inside the run's directory."""

import os
import warnings
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from lightning.pytorch.loggers import Logger

from flcog.core.files import short

_before_any_fit: WeakKeyDictionary[Logger, dict[str, Any]] = WeakKeyDictionary()
"""The attributes of loggers before their first fit, so that a second fit with the same logger has its own run and directory."""


class Tracker:
    """A Lightning logger during one fit.

    Args:
        logger: the user's logger, which returns to its state before any fit.
    """

    def __init__(self, logger: Logger) -> None:
        vars(logger).update(_copy(_before_any_fit.setdefault(logger, _copy(vars(logger)))))
        self.logger: Any = logger
        self.faulty = False
        """Whether it has failed, which is reported once."""

    @property
    def name(self) -> str:
        return type(self.logger).__name__.removesuffix("Logger")

    def prepare(self, directory: Path, run_id: str | None) -> None:
        """Move relative paths from the working directory into the run's directory. Absolute paths stay."""
        for attribute in ("_save_dir", "_root_dir"):
            value = getattr(self.logger, attribute, None)
            if isinstance(value, str | os.PathLike) and not Path(value).is_absolute():
                setattr(self.logger, attribute, str(directory / value))
        save_dir = self.logger.save_dir
        if save_dir is not None and directory not in (path := Path(save_dir)).parents and not path.is_absolute():
            warnings.warn(
                f"{type(self.logger).__name__} writes to {path} in the working directory, not to the run's: give it an absolute path",
                stacklevel=2,
            )

    def open(self) -> bool:
        """Open it. Returns False if the run continues without it."""
        return True

    def describe(self) -> str:
        """Its name with its address or folder."""
        return self.name + (f", {short(Path(self.logger.log_dir))}" if self.logger.log_dir else "")

    def log_setting(self, setting: dict[str, Any]) -> None:
        self.logger.log_hyperparams(setting)

    def log_row(self, row: dict[str, float]) -> None:
        self.logger.log_metrics({name: value for name, value in row.items() if name != "round"}, step=int(row["round"]))

    def log_figure(self, name: str, figure: Any, step: int) -> None:
        writer: Any = getattr(self.logger, "experiment", None)
        if hasattr(writer, "add_figure"):  # TensorBoard's
            writer.add_figure(name, figure, global_step=step)

    def close(self, status: str) -> None:
        self.logger.finalize(status)


def _copy(attributes: dict[str, Any]) -> dict[str, Any]:
    """Copy the attributes that a fit changes in place: paths, and the arguments of wandb.init."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in attributes.items()}
