"""Experiment trackers: any Lightning logger, W&B by default, everything they write inside the run's directory.

They receive a round's row after the row and the checkpoint were written. Their errors become warnings, so that no round is lost.
"""

import netrc
import os
import secrets
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

from lightning.pytorch.loggers import Logger, WandbLogger

from flcog.core.files import RUN_REMEDY, short, write_figure
from flcog.core.masking import masked, masked_text

Answer = TypeVar("Answer")

INIT_TIMEOUT = 30.0
"""A run is tracked offline if W&B's server does not answer within these seconds."""

_as_given: WeakKeyDictionary[Logger, dict[str, Any]] = WeakKeyDictionary()
"""Loggers in their state before their first fit, so that a second fit with the same logger has its own run and directory."""

_opened: WeakSet[WandbLogger] = WeakSet()
"""Loggers whose W&B run was opened by a fit, which closes it; a run that the user opened stays open."""


class Trackers:
    """A run's trackers. An error of a tracker is a single warning, and the other trackers continue.

    Args:
        logger: the user's loggers. ``True`` is W&B, online if a login is found and offline otherwise, never prompting.
        directory: the run's directory, which contains the loggers' relative paths.
        run_id: the W&B run of a resumed run.
    """

    def __init__(
        self, logger: Logger | Sequence[Logger] | bool | None = None, directory: Path = Path(), run_id: str | None = None
    ):
        self.directory = directory
        self.loggers: list[Logger] = []
        self._faulty: WeakSet[Logger] = WeakSet()
        self._setting: dict[str, Any] = {}
        self._figures: list[tuple[str, Any, int]] = []
        self._is_open = False
        for tracker in _as_before_any_fit(logger, directory):
            self._ask(tracker, _move_into, directory.absolute())
            self._ask(tracker, _prepare, run_id)
            self.loggers.append(tracker)

    def log_setting(self, setting: dict[str, Any]) -> None:
        """Send them the run's settings without secrets, now or when they are opened."""
        shown = masked(setting)
        self._setting |= shown
        if self._is_open:
            self._tell(_log_setting, shown)

    def begin(self) -> list[str]:
        """Open trackers that can be watched from the first round on. Returns the address or folder of each."""
        if not all(self._ask(logger, _can_wait) for logger in self.loggers):
            self.open()
        return [self._ask(logger, _describe) or _name(logger) for logger in self.loggers]

    def open(self) -> None:
        """Open them, if they are not open yet, and send them the run's settings."""
        if self._is_open:
            return
        self._is_open = True
        self.loggers = [logger for logger in self.loggers if self._ask(logger, _open_run) is not False]
        self._tell(_log_setting, self._setting)

    def log_metrics(self, row: dict[str, float]) -> None:
        """Send a round's row and pictures to every tracker."""
        self.open()
        self._tell(_log_row, row)
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
            self._tell(_log_figure, *figure)

    @property
    def run_id(self) -> str | None:
        """The id of the W&B run, which a resumed run continues. It is known before the run is open."""
        return next(filter(None, (self._ask(logger, _run_id) for logger in self.loggers)), None)

    def to_upload(self) -> list[tuple[str, str]]:
        """Return commands that upload runs that were tracked offline."""
        commands = [self._ask(logger, _upload_command) for logger in self.loggers] if self._is_open else []
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
        self._tell(_close, status)

    def _tell(self, what: Callable[..., None], *news: Any) -> None:
        for logger in self.loggers:
            self._ask(logger, what, *news)

    def _ask(self, logger: Logger, question: Callable[..., Answer], *arguments: Any) -> Answer | None:
        """Call the function on the tracker. If it fails, warn once and return None, so that training continues."""
        try:
            return question(logger, *arguments)
        except Exception as error:
            if logger not in self._faulty:
                self._faulty.add(logger)
                reason = f"{type(error).__name__}: {masked_text(_first_line(error))}"
                warnings.warn(
                    f"{_name(logger)} failed ({reason}): the run goes on, and metrics.csv has every round; what else this tracker "
                    "misses is not said",
                    stacklevel=3,
                )
            return None


def check_environment(logger: Logger | Sequence[Logger] | bool | None) -> None:
    """Refuse invalid values of W&B's environment variables, if W&B is used."""
    if logger is not True and not any(isinstance(tracker, WandbLogger) for tracker in _listed(logger)):
        return
    if not any(name.startswith("WANDB_") for name in os.environ):
        return
    import wandb

    try:
        wandb.Settings().update_from_env_vars(dict(os.environ))
    except ValueError as error:
        for wrong in error.errors() if hasattr(error, "errors") else []:
            name = f"WANDB_{wrong['loc'][0]}".upper()
            raise ValueError(
                f"W&B refuses {name}={masked(str(wrong['input']), name)} ({wrong['msg']}): correct it, unset it, or set "
                "trainer.logger=false"
            ) from None
        raise


def _listed(logger: Logger | Sequence[Logger] | bool | None) -> list[Logger]:
    if not logger or logger is True:
        return []
    return [logger] if isinstance(logger, Logger) else list(logger)


def _as_before_any_fit(logger: Logger | Sequence[Logger] | bool | None, directory: Path) -> list[Logger]:
    """Return the user's loggers in their original state."""
    by_default = logger is True and os.environ.get("WANDB_MODE") != "disabled"
    loggers = [_default_logger(directory)] if by_default else _listed(logger)
    for tracker in loggers:
        vars(tracker).update(_copy(_as_given.setdefault(tracker, _copy(vars(tracker)))))
    return loggers


def _copy(attributes: dict[str, Any]) -> dict[str, Any]:
    """Copy the attributes that a fit changes in place: paths, and the arguments of wandb.init."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in attributes.items()}


def _default_logger(directory: Path) -> Logger:
    return WandbLogger(os.environ.get("WANDB_NAME", directory.name), project=os.environ.get("WANDB_PROJECT", "flcog"))


def _move_into(logger: Logger, directory: Path) -> None:
    """Move relative paths of a logger from the working directory into the run's directory. Absolute paths stay."""
    for attribute in ("_save_dir", "_root_dir"):
        value = getattr(logger, attribute, None)
        if isinstance(value, str | os.PathLike) and not Path(value).is_absolute():
            setattr(logger, attribute, str(directory / value))
    if isinstance(logger, WandbLogger):
        save_dir = directory / (logger._wandb_init.get("dir") or ".")
        logger._wandb_init["dir"] = str(save_dir)
        save_dir.mkdir(parents=True, exist_ok=True)
    elif logger.save_dir is not None and directory not in (path := Path(logger.save_dir)).parents and not path.is_absolute():
        warnings.warn(
            f"{type(logger).__name__} writes to {path} in the working directory, not to the run's: give it an absolute path",
            stacklevel=2,
        )


def _is_open(logger: WandbLogger) -> bool:
    """Return whether the logger has a W&B run, or will use the user's open run (for example a sweep agent's)."""
    return logger._experiment is not None or _users_run() is not None


def _users_run() -> Any:
    """Return the user's open W&B run, if any. Does not import W&B, which takes half a second."""
    return getattr(sys.modules.get("wandb"), "run", None)


def _prepare(logger: Logger, run_id: str | None) -> None:
    """Return the arguments for opening a W&B run."""
    if not isinstance(logger, WandbLogger) or _is_open(logger):
        return
    arguments = logger._wandb_init
    if run_id is not None and arguments.get("id") is None:
        arguments.update(id=run_id, resume="allow")
    # Chosen here, so that a checkpoint may be written before the W&B run is opened.
    arguments["id"] = arguments.get("id") or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
    if arguments.get("anonymous") is None:
        arguments.pop("anonymous", None)  # Lightning always passes it, and W&B warns about it
    # The run's summary shows the same as W&B's output, and the progress bar needs the terminal. By default W&B also sends the
    # command line,
    # with the secrets in it, and lets git run the programs that the working directory's configuration names.
    quiet = {"silent": True, "console": "off", "x_disable_meta": True, "disable_git": True, "init_timeout": INIT_TIMEOUT}
    arguments.setdefault("settings", quiet)
    mode = arguments.get("mode") or ("offline" if logger._offline else os.environ.get("WANDB_MODE", "online"))
    # Pass it as an argument. Lightning sets "offline" in the environment, which W&B may have read already and later runs would
    # read.
    arguments["mode"], logger._offline = "offline" if mode == "online" and not _logged_in() else mode, False


def _can_wait(logger: Logger) -> bool:
    """Return whether the logger can be opened after the first round.

    W&B takes seconds to open, and offline it cannot be watched.
    """
    return isinstance(logger, WandbLogger) and not _is_open(logger) and logger._wandb_init["mode"] == "offline"


def _open_run(logger: Logger) -> bool:
    """Open a W&B run and make rounds the x-axis. Returns False if the run continues without it."""
    if not isinstance(logger, WandbLogger):
        return True
    import wandb

    if not _is_open(logger):
        logger._experiment = _new_run(logger)
        if logger._experiment is None:
            return False
        _opened.add(logger)
    run = logger._experiment = logger._experiment or wandb.run
    assert run is not None
    run.define_metric(_round_of(logger), hidden=True)
    run.define_metric("*", step_metric=_round_of(logger))
    return True


def _new_run(logger: WandbLogger) -> Any:
    """Open a W&B run, offline if its server cannot be reached. Returns None if this fails too, so that training continues."""
    import wandb

    if logger._wandb_init["mode"] != "offline":
        try:
            return logger.experiment
        except wandb.Error as error:
            warnings.warn(
                f"W&B opened no run ({_first_line(error)}): tracking offline instead, to be uploaded by `wandb sync`",
                stacklevel=2,
            )
            # W&B considers an id as used after it has tried to open a run with it.
            logger._wandb_init.update(mode="offline", id=secrets.token_hex(4))
            logger._wandb_init.pop("resume", None)
    try:
        return logger.experiment
    except Exception as error:  # a full disk, a broken installation, wrong arguments
        warnings.warn(
            f"W&B opened no run, not even offline ({_first_line(error)}): going on without it; metrics.csv has every round",
            stacklevel=2,
        )
        return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _round_of(logger: WandbLogger) -> str:
    """Make this column the x-axis of all charts."""
    return f"{logger._prefix}{logger.LOGGER_JOIN_CHAR}round" if logger._prefix else "round"


def _logged_in() -> bool:
    """Return whether W&B would find a key without a prompt."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    if not any(name.startswith("WANDB_") for name in os.environ) and not any(path.exists() for path in _files_with_keys()):
        return False  # without importing W&B
    import wandb

    settings = wandb.setup().settings
    if settings.api_key:
        return True
    host = urlsplit(settings.base_url).netloc
    hosts = [host, "api.wandb.ai"] if host.endswith((".wandb.ai", ".coreweave.com")) else [host]
    try:
        logins = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return False
    return any(login and login[2] for login in map(logins.authenticators, hosts))


def _files_with_keys() -> list[Path]:
    """Return the files that W&B searches for a key or the address of its server."""
    netrc_file = os.environ.get("NETRC")
    logins = [Path(netrc_file)] if netrc_file else [Path.home() / ".netrc", Path.home() / "_netrc"]
    return [*logins, Path.home() / ".config" / "wandb" / "settings", Path("wandb", "settings")]


def _log_setting(logger: Logger, setting: dict[str, Any]) -> None:
    logger.log_hyperparams(setting)


def _log_row(logger: Logger, row: dict[str, float]) -> None:
    if isinstance(logger, WandbLogger):
        logger.log_metrics(row)
    else:
        logger.log_metrics({name: value for name, value in row.items() if name != "round"}, step=int(row["round"]))


def _log_figure(logger: Logger, name: str, figure: Any, step: int) -> None:
    if isinstance(logger, WandbLogger):
        import wandb

        logger.experiment.log({name: wandb.Image(figure), _round_of(logger): step})
    else:
        writer: Any = getattr(logger, "experiment", None)
        if hasattr(writer, "add_figure"):  # TensorBoard's
            writer.add_figure(name, figure, global_step=step)


def _run_id(logger: Logger) -> str | None:
    if not isinstance(logger, WandbLogger):
        return None
    run = logger._experiment or _users_run()
    identity = logger._wandb_init["id"] if run is None else run.id
    return identity if isinstance(identity, str) else None


def _describe(logger: Logger) -> str:
    """Return the address or folder of the tracked run."""
    if isinstance(logger, WandbLogger):
        offline = not _is_open(logger) or logger.experiment.offline
        return f"W&B, {'offline' if offline else logger.experiment.url}"
    return _name(logger) + (f", {short(Path(logger.log_dir))}" if logger.log_dir else "")


def _name(logger: Logger) -> str:
    return "W&B" if isinstance(logger, WandbLogger) else type(logger).__name__.removesuffix("Logger")


def _upload_command(logger: Logger) -> str | None:
    if isinstance(logger, WandbLogger) and logger.experiment.offline:
        return shlex.join(["wandb", "sync", str(short(Path(logger.experiment.dir).parent))])
    return None


def _close(logger: Logger, status: str) -> None:
    logger.finalize(status)
    if isinstance(logger, WandbLogger) and logger in _opened:
        _opened.discard(logger)
        logger.experiment.finish(exit_code=int(status != "success"))
