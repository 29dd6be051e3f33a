"""W&B as a tracker: online if a login is found and offline otherwise, without a prompt."""

import netrc
import os
import secrets
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning.pytorch.loggers import WandbLogger

from flcog.core.files import short
from flcog.core.masking import masked
from flcog.core.text import first_line
from flcog.run.tracker import Tracker

INIT_TIMEOUT = 30.0
"""A run is tracked offline if W&B's server does not answer within these seconds."""


def default_logger(directory: Path) -> WandbLogger:
    """The logger of ``logger=True``."""
    return WandbLogger(os.environ.get("WANDB_NAME", directory.name), project=os.environ.get("WANDB_PROJECT", "flcog"))


class WandbTracker(Tracker):
    """Lightning's W&B logger during one fit, which closes the W&B run that it opens. A run that the user opened stays open."""

    name = "W&B"

    def __init__(self, logger: WandbLogger) -> None:
        super().__init__(logger)
        self._opened = False

    @property
    def _arguments(self) -> dict[str, Any]:
        """The arguments of wandb.init."""
        return self.logger._wandb_init

    @property
    def _has_run(self) -> bool:
        """Whether the logger has a W&B run, or will use the user's open run (for example a sweep agent's)."""
        return self.logger._experiment is not None or _users_run() is not None

    @property
    def can_wait(self) -> bool:
        """Whether it can be opened after the first round: W&B takes seconds to open, and offline it cannot be watched."""
        return not self._has_run and self._arguments["mode"] == "offline"

    @property
    def run_id(self) -> str | None:
        """The id by which a resumed run continues it."""
        run = self.logger._experiment or _users_run()
        identity = self._arguments["id"] if run is None else run.id
        return identity if isinstance(identity, str) else None

    @property
    def upload_command(self) -> str | None:
        """The command that uploads a run that was tracked offline, with all parts of a resumed run, oldest first."""
        run = self.logger.experiment
        if not run.offline:
            return None
        return f"wandb sync {shlex.quote(str(short(Path(run.dir).parents[1])))}/offline-run-*-{shlex.quote(run.id)}"

    def prepare(self, directory: Path, run_id: str | None) -> None:
        arguments = self._arguments
        save_dir = directory / (arguments.get("dir") or ".")
        arguments["dir"] = str(save_dir)
        save_dir.mkdir(parents=True, exist_ok=True)
        super().prepare(directory, run_id)
        if self._has_run:
            return
        if run_id is not None and arguments.get("id") is None:
            arguments.update(id=run_id, resume="allow")
        # Chosen here, so that a checkpoint may be written before the W&B run is opened.
        arguments["id"] = arguments.get("id") or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        if arguments.get("anonymous") is None:
            arguments.pop("anonymous", None)  # Lightning always passes it, and W&B warns about it
        # The run's summary shows the same as W&B's output, and the progress bar needs the terminal. By default W&B also sends the
        # command line, with the secrets in it, and lets git run the programs that the working directory's configuration names.
        quiet = {"silent": True, "console": "off", "x_disable_meta": True, "disable_git": True, "init_timeout": INIT_TIMEOUT}
        arguments.setdefault("settings", quiet)
        mode = arguments.get("mode") or ("offline" if self.logger._offline else os.environ.get("WANDB_MODE", "online"))
        # Pass it as an argument. Lightning sets "offline" in the environment, which W&B may have read already and later runs would
        # read.
        arguments["mode"], self.logger._offline = "offline" if mode == "online" and not logged_in() else mode, False

    def open(self) -> bool:
        """Open a W&B run and make rounds the x-axis."""
        import wandb

        if not self._has_run:
            self.logger._experiment = self._new_run()
            if self.logger._experiment is None:
                return False
            self._opened = True
        run: Any = self.logger._experiment or wandb.run
        self.logger._experiment = run
        run.define_metric(self._round, hidden=True)
        run.define_metric("*", step_metric=self._round)
        return True

    def _new_run(self) -> Any:
        """Open a W&B run, offline if its server cannot be reached. Returns None if this fails too, so that training continues."""
        import wandb

        if self._arguments["mode"] != "offline":
            try:
                return self.logger.experiment
            except wandb.Error as error:
                warnings.warn(
                    f"W&B opened no run ({first_line(error)}): tracking offline instead, to be uploaded by `wandb sync`",
                    stacklevel=2,
                )
                # W&B considers an id as used after it has tried to open a run with it.
                self._arguments.update(mode="offline", id=secrets.token_hex(4))
                self._arguments.pop("resume", None)
        try:
            return self.logger.experiment
        except Exception as error:  # a full disk, a broken installation, wrong arguments
            warnings.warn(
                f"W&B opened no run, not even offline ({first_line(error)}): going on without it; metrics.csv has every round",
                stacklevel=2,
            )
            return None

    @property
    def _round(self) -> str:
        """The column that is the x-axis of all charts."""
        return f"{self.logger._prefix}{self.logger.LOGGER_JOIN_CHAR}round" if self.logger._prefix else "round"

    def describe(self) -> str:
        offline = not self._has_run or self.logger.experiment.offline
        return f"W&B, {'offline' if offline else self.logger.experiment.url}"

    def log_row(self, row: dict[str, float]) -> None:
        self.logger.log_metrics(row)

    def log_figure(self, name: str, figure: Any, step: int) -> None:
        import wandb

        self.logger.experiment.log({name: wandb.Image(figure), self._round: step})

    def close(self, status: str) -> None:
        super().close(status)
        if self._opened:
            self._opened = False
            self.logger.experiment.finish(exit_code=int(status != "success"))


def check_environment() -> None:
    """Refuse invalid values of W&B's environment variables."""
    if not _has_variables():
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


def _has_variables() -> bool:
    return any(name.startswith("WANDB_") for name in os.environ)


def _users_run() -> Any:
    """The user's open W&B run, if any. Does not import W&B, which takes half a second."""
    return getattr(sys.modules.get("wandb"), "run", None)


def logged_in() -> bool:
    """Whether W&B would find a key without a prompt."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    if not _has_variables() and not any(path.exists() for path in _files_with_keys()):
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
    """The files that W&B searches for a key or the address of its server."""
    netrc_file = os.environ.get("NETRC")
    logins = [Path(netrc_file)] if netrc_file else [Path.home() / ".netrc", Path.home() / "_netrc"]
    return [*logins, Path.home() / ".config" / "wandb" / "settings", Path("wandb", "settings")]
