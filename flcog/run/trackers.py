"""A run's experiment trackers: W&B by default, or any Lightning loggers.

They receive a round's row after the row and the checkpoint were written. Their errors become warnings, so that no round is lost.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

from lightning.pytorch.loggers import Logger

from flcog.core.files import RUN_REMEDY, write_figure
from flcog.core.lightning_packages import lightning_base
from flcog.core.masking import masked, masked_text
from flcog.core.text import first_line
from flcog.run import wandb_tracker
from flcog.run.directory import refuse_links_out
from flcog.run.tracker import Tracker
from flcog.run.wandb_tracker import WandbTracker, default_logger

Loggers = Logger | Sequence[Logger] | bool | None
"""The trainer's argument ``logger``."""

Asked = TypeVar("Asked", bound=Tracker)
Answer = TypeVar("Answer")


class Trackers:
    """A run's trackers. An error of a tracker is a single warning, and the other trackers continue.

    Args:
        logger: the user's loggers. ``True`` is W&B.
        directory: the run's directory, which contains the loggers' relative paths.
        run_id: the W&B run of a resumed run.
    """

    def __init__(self, logger: Loggers = None, directory: Path = Path(), run_id: str | None = None) -> None:
        self.directory = directory
        self._setting: dict[str, Any] = {}
        self._figures: list[tuple[str, Any, int]] = []
        self._is_open = False
        self._trackers = [_tracker(each) for each in _listed(logger, directory)]
        self._tell(lambda tracker: tracker.prepare(directory.absolute(), run_id))
        for tracker in self._trackers:
            folder = self._ask(tracker, lambda it: it.logger.save_dir)
            if folder is not None and not isinstance(tracker, WandbTracker):
                refuse_links_out(Path(folder), directory.absolute())

    @property
    def loggers(self) -> list[Logger]:
        return [tracker.logger for tracker in self._trackers]

    @property
    def _wandb(self) -> list[WandbTracker]:
        return [tracker for tracker in self._trackers if isinstance(tracker, WandbTracker)]

    def log_setting(self, setting: dict[str, Any]) -> None:
        """Send them the run's settings without secrets, now or when they are opened."""
        shown = masked(setting)
        self._setting |= shown
        if self._is_open:
            self._tell(lambda tracker: tracker.log_setting(shown))

    def begin(self) -> list[str]:
        """Open trackers that can be watched from the first round on. Returns the address or folder of each."""
        if len(self._wandb) < len(self._trackers) or not all(
            self._ask(tracker, lambda it: it.can_wait) for tracker in self._wandb
        ):
            self.open()
        return [self._ask(tracker, lambda it: it.describe()) or tracker.name for tracker in self._trackers]

    def open(self) -> None:
        """Open them, if they are not open yet, and send them the run's settings."""
        if self._is_open:
            return
        self._is_open = True
        self._trackers = [tracker for tracker in self._trackers if self._ask(tracker, lambda it: it.open()) is not False]
        self._tell(lambda tracker: tracker.log_setting(self._setting))

    def log_metrics(self, row: dict[str, float]) -> None:
        """Send a round's row and pictures to every tracker, with Lightning's number of the epoch: rounds counted from 0."""
        self.open()
        shown = {"epoch": row["round"] - 1} | row
        self._tell(lambda tracker: tracker.log_row(shown))
        self._log_figures()

    def log_figure(self, name: str, figure: Any, step: int, share: bool = True) -> None:
        """Write a picture to the run's directory.

        If it may be shared, also send it with the round's row to every tracker that takes pictures.
        """
        path = self.directory / "figures" / f"{name.replace('/', '-')}-{step:06d}.png"
        write_figure(path, figure, remedy=RUN_REMEDY, bbox_inches="tight")
        if share:
            self._figures.append((name, figure, step))

    def _log_figures(self) -> None:
        figures, self._figures = self._figures, []
        for figure in figures:
            self._tell(methodcaller("log_figure", *figure))

    @property
    def run_id(self) -> str | None:
        """The id of the W&B run, which a resumed run continues. It is known before the run is open."""
        return next(filter(None, (self._ask(tracker, lambda it: it.run_id) for tracker in self._wandb)), None)

    def to_upload(self) -> list[tuple[str, str]]:
        """The commands that upload runs that were tracked offline."""
        commands = [self._ask(tracker, lambda it: it.upload_command) for tracker in self._wandb] if self._is_open else []
        return [("Upload it to W&B", command) for command in commands if command]

    def close(self, status: str) -> None:
        """Finish the runs that the fit has opened. The user's own W&B run stays open.

        Args:
            status: "success" or "failed".
        """
        if self._figures and status == "success":
            self.open()
        if self._is_open:
            self._log_figures()
        self._tell(lambda tracker: tracker.close(status))

    def _tell(self, news: Callable[[Tracker], None]) -> None:
        for tracker in self._trackers:
            self._ask(tracker, news)

    def _ask(self, tracker: Asked, question: Callable[[Asked], Answer]) -> Answer | None:
        """Call the function on the tracker. If it fails, warn once and return None, so that training continues."""
        try:
            return question(tracker)
        except Exception as error:
            if not tracker.faulty:
                tracker.faulty = True
                reason = f"{type(error).__name__}: {masked_text(first_line(error))}"
                warnings.warn(
                    f"{tracker.name} failed ({reason}): the run continues, and metrics.csv has every round; further failures of this "
                    "tracker are not reported",
                    stacklevel=3,
                )
            return None


def check_environment(logger: Loggers) -> None:
    """Refuse invalid values of W&B's environment variables, if W&B is used."""
    if logger is True or any(lightning_base(each, "WandbLogger") for each in _listed(logger, Path())):
        wandb_tracker.check_environment()


def _listed(logger: Loggers, directory: Path) -> list[Logger]:
    if logger is True and os.environ.get("WANDB_MODE") != "disabled":
        return [default_logger(directory)]
    if not logger or logger is True:
        return []
    return list(logger) if isinstance(logger, Sequence) else [logger]


def _tracker(logger: Logger) -> Tracker:
    return WandbTracker(logger) if lightning_base(logger, "WandbLogger") else Tracker(logger)  # type: ignore[arg-type]
