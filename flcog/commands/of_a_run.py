"""Shared by commands that read a run: make its trainer, model and data from its config, and find its checkpoint."""

import os
import sys
from pathlib import Path

from flcog.commands.command_cli import CommandCLI
from flcog.core.fabric import make_fabric
from flcog.run.saved_run import read_config

IMPORT_FROM = (
    "a folder with your own modules that the run's config names. Without it nothing is imported from the run's folder or the working "
    "directory, because a run may come from a stranger"
)
"""The help of the option ``--import-from``."""


def import_only_from(folder: Path | None) -> None:
    """Import modules from the installed packages and from ``folder``, but not from the working directory.

    ``python -m flcog`` puts the working directory on Python's path, where an installed script does not.
    """
    if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
        del sys.path[0]
    if folder is None:
        return
    if not folder.is_dir():
        raise ValueError(f"--import-from {folder} is no folder: give the folder that contains your own modules")
    sys.path.append(str(folder.resolve()))


class _RunReader(CommandCLI):
    """Makes the objects that a config describes, and imports nothing from the working directory."""

    @staticmethod
    def find_modules() -> None:
        pass


def open_run(run: Path, import_from: Path | None, *options: str) -> CommandCLI:
    """Make the trainer, model and data of a run from its config.yaml, without trackers."""
    import_only_from(import_from)
    config = run / "config.yaml"
    if not config.is_file():
        raise ValueError(f"{run} holds no config.yaml: give the directory of a run started by `flcog fit`")
    return _RunReader(["--config", str(config), "--trainer.logger", "false", *_devices_here(run), *options])


def _devices_here(run: Path) -> list[str]:
    """Return options that replace a run's devices with a device of this machine, if this machine lacks them."""
    asked = read_config(run).get("trainer") or {}
    if not {"accelerator", "devices"} <= asked.keys():
        return []
    accelerator, devices = asked["accelerator"], asked["devices"]
    try:
        make_fabric(accelerator, "auto", devices, 1)
    except ValueError:
        print(f"this machine lacks the run's accelerator={accelerator}, devices={devices}: using a device of its own instead")
        return ["--trainer.accelerator", "auto", "--trainer.strategy", "auto", "--trainer.devices", "1"]
    return []


def checkpoint_of(run: Path, given: str | None) -> Path:
    """Find a checkpoint: ``best``, ``last`` or a file. By default the best model, or the last if no round was evaluated."""
    folder = run / "checkpoints"
    names = ("best", "last") if given is None else (given,)
    paths = [folder / f"{name}.ckpt" if name in ("best", "last") else Path(name) for name in names]
    found = next((path for path in paths if path.is_file()), None)
    if found is None and not folder.is_dir():
        raise ValueError(f"{run} holds no checkpoints: give the directory of a run that has written some")
    if found is None:
        raise ValueError(f"no checkpoint at {paths[-1]}: give best, last, or a file under {folder}")
    return found
