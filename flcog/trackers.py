"""Experiment trackers: any Lightning logger, W&B by default, everything they write inside the run's directory."""

import netrc
import os
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

from lightning.pytorch.loggers import Logger, WandbLogger

from flcog.files import write_figure
from flcog.run_directory import RUN_REMEDY, short

INIT_TIMEOUT = 30.0
"""Seconds that W&B's server may take to answer, after which a run is tracked offline."""

_as_given: WeakKeyDictionary[Logger, dict[str, Any]] = WeakKeyDictionary()
"""Loggers as they were before their first fit: a second fit with the same logger has its own run and directory."""

_opened: WeakSet[WandbLogger] = WeakSet()
"""Loggers whose W&B run was opened by a fit, which closes it; a run that the user opened stays open."""


def make_loggers(logger: Logger | Sequence[Logger] | bool | None, directory: Path, run_id: str | None) -> list[Logger]:
    """The run's loggers, not opened yet; ``True`` is W&B, online where a login is found and offline otherwise, never prompting.

    Args:
        logger: what the user asked for.
        directory: the run's directory; relative paths of loggers are taken to lie in it.
        run_id: the W&B run to go on with after a resume.
    """
    if logger is True:
        loggers = [] if os.environ.get("WANDB_MODE") == "disabled" else [_default_logger(directory)]
    elif not logger:
        loggers = []
    else:
        loggers = [logger] if isinstance(logger, Logger) else list(logger)
    directory = directory.absolute()
    for each in loggers:
        vars(each).update(_copy(_as_given.setdefault(each, _copy(vars(each)))))
        _move_into(each, directory)
        if isinstance(each, WandbLogger) and not _is_open(each):
            _prepare(each, run_id)
    return loggers


def _copy(attributes: dict[str, Any]) -> dict[str, Any]:
    """Deep enough for what a fit changes in place: paths, and the arguments of wandb.init."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in attributes.items()}


def _default_logger(directory: Path) -> Logger:
    return WandbLogger(os.environ.get("WANDB_NAME", directory.name), project=os.environ.get("WANDB_PROJECT", "flcog"))


def _move_into(logger: Logger, directory: Path) -> None:
    """Loggers default to the working directory: put relative paths under the run's. An absolute path is the user's own wish."""
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
    """Whether it has a W&B run, or will take the one that the user has open (a sweep's agent, for one)."""
    import wandb

    return logger._experiment is not None or wandb.run is not None


def _prepare(logger: WandbLogger, run_id: str | None) -> None:
    """What the W&B run will be opened with."""
    import wandb

    arguments = logger._wandb_init
    if run_id is not None and arguments.get("id") is None:
        arguments.update(id=run_id, resume="allow")
    if arguments.get("anonymous") is None:
        arguments.pop("anonymous", None)  # which Lightning always gives, and W&B warns of
    # What W&B would print is in the run's summary, and the terminal is the progress bar's.
    arguments.setdefault("settings", wandb.Settings(silent=True, console="off", init_timeout=INIT_TIMEOUT))
    mode = arguments.get("mode") or ("offline" if logger._offline else os.environ.get("WANDB_MODE", "online"))
    # Said as an argument: Lightning says "offline" through the environment, where W&B may no longer look and others later do.
    arguments["mode"], logger._offline = "offline" if mode == "online" and not _logged_in() else mode, False


def can_wait(loggers: Sequence[Logger]) -> bool:
    """Whether they may be opened after the first round: W&B offline takes seconds to open, and nobody could watch it meanwhile."""
    return all(
        isinstance(logger, WandbLogger) and not _is_open(logger) and logger._wandb_init["mode"] == "offline" for logger in loggers
    )


def open_runs(loggers: Sequence[Logger]) -> list[Logger]:
    """Open the W&B runs, and make rounds their x-axis. Returns the loggers that the run goes on with."""
    import wandb

    working = []
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            if not _is_open(logger):
                logger._experiment = _new_run(logger)
                if logger._experiment is None:
                    continue
                _opened.add(logger)
            run = logger._experiment = logger._experiment or wandb.run
            assert run is not None
            run.define_metric(_round_of(logger), hidden=True)
            run.define_metric("*", step_metric=_round_of(logger))
        working.append(logger)
    return working


def _new_run(logger: WandbLogger) -> Any:
    """A W&B run: offline where its server cannot be reached, None where that fails too. Nobody should lose a training to its tracker."""
    import wandb

    if logger._wandb_init["mode"] != "offline":
        try:
            return logger.experiment
        except wandb.Error as error:
            warnings.warn(
                f"W&B opened no run ({_first_line(error)}): tracking offline instead, to be uploaded by `wandb sync`",
                stacklevel=2,
            )
            logger._wandb_init["mode"] = "offline"
    try:
        return logger.experiment
    except Exception as error:  # a full disk, a broken installation, whatever wandb.init was given
        warnings.warn(
            f"W&B opened no run, not even offline ({_first_line(error)}): going on without it; metrics.csv has every round",
            stacklevel=2,
        )
        return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _round_of(logger: WandbLogger) -> str:
    """The column that is the x-axis of all charts."""
    return f"{logger._prefix}{logger.LOGGER_JOIN_CHAR}round" if logger._prefix else "round"


def _logged_in() -> bool:
    """Whether W&B would find a key without asking for one."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
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


def log_metrics(loggers: Sequence[Logger], metrics: dict[str, float]) -> None:
    """A round's row, to every tracker."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.log_metrics(metrics)
        else:
            logger.log_metrics({name: value for name, value in metrics.items() if name != "round"}, step=int(metrics["round"]))


def log_figure(loggers: Sequence[Logger], name: str, figure: Any, step: int, directory: Path | None) -> None:
    """A picture to every tracker that takes pictures, and to the run's directory."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            import wandb

            logger.experiment.log({name: wandb.Image(figure), _round_of(logger): step})
        else:
            writer: Any = getattr(logger, "experiment", None)
            if hasattr(writer, "add_figure"):  # TensorBoard's
                writer.add_figure(name, figure, global_step=step)
    if directory is not None:
        path = directory / "figures" / f"{name.replace('/', '-')}-{step:06d}.png"
        write_figure(path, figure, remedy=RUN_REMEDY, bbox_inches="tight")


def run_id(loggers: Sequence[Logger]) -> str | None:
    """The W&B run's id, so that a resumed run goes on in it."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            version = logger.version
            return version if isinstance(version, str) else None
    return None


def describe(loggers: Sequence[Logger]) -> list[str]:
    """Where each tracker can be looked at."""
    lines = []
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            offline = not _is_open(logger) or logger.experiment.offline
            lines.append(f"W&B, {'offline' if offline else logger.experiment.url}")
        else:
            where = f", {short(Path(logger.log_dir))}" if logger.log_dir else ""
            lines.append(type(logger).__name__.removesuffix("Logger") + where)
    return lines


def to_upload(loggers: Sequence[Logger]) -> list[tuple[str, str]]:
    """What to type to upload runs that were tracked offline."""
    rows = []
    for logger in loggers:
        if isinstance(logger, WandbLogger) and logger.experiment.offline:
            rows.append(("Upload it to W&B", shlex.join(["wandb", "sync", str(short(Path(logger.experiment.dir).parent))])))
    return rows


def close(loggers: Sequence[Logger], status: str) -> None:
    """Finish what the fit has opened; a W&B run that was the user's own stays open.

    Args:
        loggers: the run's.
        status: "success" or "failed".
    """
    for logger in loggers:
        logger.finalize(status)
        if isinstance(logger, WandbLogger) and logger in _opened:
            _opened.discard(logger)
            logger.experiment.finish(exit_code=int(status != "success"))
