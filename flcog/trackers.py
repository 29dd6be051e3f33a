"""Experiment trackers: any Lightning logger, W&B by default, everything they write inside the run's directory."""

import netrc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning.pytorch.loggers import Logger, WandbLogger


def make_loggers(logger: Logger | Sequence[Logger] | bool | None, directory: Path, run_id: str | None) -> list[Logger]:
    """The run's loggers; ``True`` is W&B, online where a login is found and offline otherwise, never prompting.

    Args:
        logger: what the user asked for.
        directory: the run's directory; relative paths of loggers are taken to lie in it.
        run_id: the W&B run to go on with after a resume.
    """
    if logger is True:
        loggers: list[Logger] = [
            WandbLogger(project="flcog", name=directory.name, save_dir=str(directory), offline=not _logged_in())
        ]
    elif not logger:
        return []
    else:
        loggers = [logger] if isinstance(logger, Logger) else list(logger)
    for each in loggers:
        _move_into(each, directory)
        if isinstance(each, WandbLogger):
            if run_id is not None and each._wandb_init.get("id") is None:
                each._wandb_init.update(id=run_id, resume="allow")
            import wandb

            each._wandb_init.setdefault("settings", wandb.Settings(quiet=True, silent=each._offline, console="off"))
    return loggers


def _logged_in() -> bool:
    """Whether W&B would find a key without asking for one."""
    if os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun"):
        return False
    if os.environ.get("WANDB_API_KEY"):
        return True
    import wandb

    try:
        host = urlsplit(wandb.Settings().base_url).hostname or ""
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _move_into(logger: Logger, directory: Path) -> None:
    """Loggers default to the working directory: put relative paths under the run's. An absolute path is the user's own wish."""
    for attribute in ("_save_dir", "_root_dir"):
        value = getattr(logger, attribute, None)
        if isinstance(value, str | os.PathLike) and not Path(value).is_absolute():
            setattr(logger, attribute, str(directory / value))
    if isinstance(logger, WandbLogger):
        save_dir = Path(logger._wandb_init.get("dir") or ".")
        logger._wandb_init["dir"] = str(directory / save_dir)
        Path(logger._wandb_init["dir"]).mkdir(parents=True, exist_ok=True)


def run_id(loggers: Sequence[Logger]) -> str | None:
    """The W&B run's id, so that a resumed run goes on in it."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            version = logger.version
            return version if isinstance(version, str) else None
    return None


def log_figure(loggers: Sequence[Logger], name: str, figure: Any, step: int, directory: Path | None) -> None:
    """A picture to every tracker that takes pictures, and to the run's directory."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            import wandb

            logger.experiment.log({name: wandb.Image(figure)}, commit=False)
        elif hasattr(logger.experiment, "add_figure"):  # TensorBoard's writer
            logger.experiment.add_figure(name, figure, global_step=step)
    if directory is not None:
        path = directory / "figures" / f"{name.replace('/', '-')}-{step:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, bbox_inches="tight")
