"""A run's experiment trackers: W&B by default, or any of Lightning's loggers.

They receive a round's row after the row and the checkpoint were written. Their errors become warnings, so that no round is lost.
"""

import os
import secrets
import shlex
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from lightning.pytorch.loggers import Logger, WandbLogger

from flcog.core.files import RUN_REMEDY, short, write_figure
from flcog.core.lightning_packages import lightning_base
from flcog.core.masking import masked, masked_text
from flcog.core.text import first_line

Loggers = Logger | Sequence[Logger] | bool | None

Answer = TypeVar("Answer")

QUIET = {"silent": True, "console": "off", "x_disable_meta": True, "disable_git": True, "init_timeout": 30.0}
"""W&B prints nothing of its own, sends no command line, in which secrets may be, and is offline if its server does not answer."""

PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "4", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
"""MLflow's variables, where the user has not set them: its server is given up after eight seconds, instead of a quarter of an hour."""

_before_any_fit: WeakKeyDictionary[Logger, dict[str, Any]] = WeakKeyDictionary()
"""The attributes of loggers before their first fit, so that a second fit with the same logger has its own run and directory."""


class Trackers:
    """Lightning's loggers during one fit. An error of a logger is a single warning, and the others continue.

    Relative paths of loggers begin in the run's directory. A resumed run continues its W&B run, and a W&B run that the fit has opened
    ends with it.
    """

    def __init__(self, logger: Loggers = None, directory: Path = Path(), run_id: str | None = None) -> None:
        self.directory = directory
        if logger is True and os.environ.get("WANDB_MODE") != "disabled":
            name, project = os.environ.get("WANDB_NAME", directory.name), os.environ.get("WANDB_PROJECT", "flcog")
            logger = WandbLogger(name, save_dir=".", project=project)
        given = logger if isinstance(logger, Sequence) else [logger]
        self.loggers: list[Any] = [each for each in given if each and each is not True]
        self._failed, self._opened = set[int](), list[Any]()
        for each in self.loggers:
            vars(each).update(_copy(_before_any_fit.setdefault(each, _copy(vars(each)))))
            self._ask(each, lambda it: _prepare(it, directory.absolute(), run_id))

    def begin(self, setting: dict[str, Any]) -> list[str]:
        """Open them, and send them the run's settings. Returns the address or folder of each."""
        self.loggers = [each for each in self.loggers if self._ask(each, self._open)]
        self.log_setting(setting)
        return [self._ask(each, _describe) or type(each).__name__ for each in self.loggers]

    def log_setting(self, setting: dict[str, Any]) -> None:
        self._tell(lambda logger: logger.log_hyperparams(masked(setting)))

    def _open(self, logger: Any) -> bool:
        """Open a run of a tracker with a server, in W&B offline if that cannot be reached. W&B uses a run that the user has opened."""
        if not _is_wandb(logger):
            if lightning_base(logger, "MLFlowLogger") is not None:
                os.environ.update(PATIENCE | os.environ)
                logger.experiment  # noqa: B018 - opens it
            return True
        import wandb

        others = wandb.run is not None
        try:
            run = logger.experiment
        except wandb.Error as error:
            warnings.warn(f"W&B opened no run ({first_line(error)}): tracking offline instead, for `wandb sync`", stacklevel=2)
            # W&B considers an id as used after it has tried to open a run with it.
            logger._wandb_init.update(mode="offline", id=secrets.token_hex(4), resume=None)
            run = logger.experiment
        if not others:
            self._opened.append(logger)
        return run is not None

    def log_metrics(self, row: dict[str, float]) -> None:
        """Send a round's row to every logger, with Lightning's number of the epoch: rounds counted from 0."""
        metrics = {"epoch": row["round"] - 1} | {name: value for name, value in row.items() if name != "round"}
        self._tell(lambda logger: logger.log_metrics(metrics, step=int(row["round"])))

    def log_figure(self, name: str, figure: Any, step: int, share: bool = True) -> None:
        """Write a picture to the run's directory. If it may be shared, also send it to every logger that takes pictures."""
        path = self.directory / "figures" / f"{name.replace('/', '-')}-{step:06d}.png"
        write_figure(path, figure, remedy=RUN_REMEDY, bbox_inches="tight")

        def log(logger: Any) -> None:
            if _is_wandb(logger):
                logger.log_image(name, [figure], step)
            elif hasattr(logger.experiment, "add_figure"):  # TensorBoard's
                logger.experiment.add_figure(name, figure, global_step=step)

        if share:
            self._tell(log)

    @property
    def _wandb_runs(self) -> list[Any]:
        runs = [self._ask(each, lambda it: it.experiment) for each in self.loggers if _is_wandb(each)]
        return [run for run in runs if run is not None]

    @property
    def run_id(self) -> str | None:
        """The id of the W&B run, which a resumed run continues."""
        return next((run.id for run in self._wandb_runs), None)

    def to_upload(self) -> list[tuple[str, str]]:
        """The commands that upload runs that were tracked offline, with all parts of a resumed run."""
        runs = [(short(Path(run.dir).parents[1]), run.id) for run in self._wandb_runs if getattr(run, "offline", False)]
        return [
            ("Upload it to W&B", f"wandb sync {shlex.quote(str(folder))}/offline-run-*-{shlex.quote(name)}")
            for folder, name in runs
        ]

    def close(self, status: str) -> None:
        """End the fit with a status, "success" or "failed"."""
        self._tell(lambda logger: logger.finalize(status))
        for logger in self._opened:
            self._ask(logger, lambda it: it.experiment.finish(exit_code=int(status != "success")))

    def _tell(self, news: Callable[[Any], None]) -> None:
        for logger in self.loggers:
            self._ask(logger, news)

    def _ask(self, logger: Any, question: Callable[[Any], Answer]) -> Answer | None:
        """Call the function on the logger. If it fails, warn once and return None, so that training continues."""
        try:
            return question(logger)
        except Exception as error:
            if id(logger) not in self._failed:
                self._failed.add(id(logger))
                warnings.warn(
                    f"{_name(logger)} failed ({type(error).__name__}: {masked_text(first_line(error))}): the run continues, and "
                    "metrics.csv has every round; further failures of this tracker are not reported",
                    stacklevel=3,
                )
            return None


def _copy(attributes: dict[str, Any]) -> dict[str, Any]:
    """Copy the attributes that a fit changes in place: paths, and the arguments of wandb.init."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in attributes.items()}


def _is_wandb(logger: Any) -> bool:
    return lightning_base(logger, "WandbLogger") is not None


def _name(logger: Any) -> str:
    return "W&B" if _is_wandb(logger) else type(logger).__name__.removesuffix("Logger")


def _prepare(logger: Any, directory: Path, run_id: str | None) -> None:
    """Move relative paths into the run's directory, continue the W&B run of a resumed run, and choose between online and offline."""
    for attribute in ("_save_dir", "_root_dir"):
        if isinstance(value := getattr(logger, attribute, None), str | os.PathLike):
            setattr(logger, attribute, str(directory / value))
    if not _is_wandb(logger):
        return
    arguments = logger._wandb_init
    folder = directory / (arguments.get("dir") or ".")
    folder.mkdir(parents=True, exist_ok=True)
    arguments["dir"] = str(folder)
    arguments.setdefault("settings", QUIET)
    if arguments.get("anonymous") is None:
        arguments.pop("anonymous", None)  # Lightning always passes it, and W&B warns about it
    if run_id is not None and arguments.get("id") is None:
        arguments.update(id=run_id, resume="allow")
    # As an argument: Lightning sets "offline" in the environment, which later runs would read.
    mode = arguments.get("mode") or ("offline" if logger._offline else os.environ.get("WANDB_MODE", "online"))
    arguments["mode"], logger._offline = "offline" if mode == "online" and not _logged_in() else mode, False


def _logged_in() -> bool:
    import wandb
    from requests.utils import get_netrc_auth

    settings = wandb.setup().settings
    keys = os.environ.get("WANDB_API_KEY"), os.environ.get("WANDB_IDENTITY_TOKEN_FILE"), settings.api_key
    return wandb.run is not None or any(keys) or get_netrc_auth(settings.base_url) is not None


def _describe(logger: Any) -> str:
    if _is_wandb(logger):
        run = logger.experiment
        return f"W&B, {'offline' if getattr(run, 'offline', False) else run.url}"
    return _name(logger) + (f", {short(Path(logger.log_dir))}" if logger.log_dir else "")
