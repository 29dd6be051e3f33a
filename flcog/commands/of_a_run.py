"""What commands on a finished run share: its trainer, model and data made again from its config, and its checkpoint."""

import warnings
from pathlib import Path

import yaml

from flcog.commands.command_cli import CommandCLI
from flcog.core.fabric import make_fabric


def open_run(run: Path, *options: str) -> CommandCLI:
    """The trainer, model and data of a run, as its config.yaml describes them; nothing is tracked.

    Args:
        run: its directory.
        options: further ones of ``flcog fit``.
    """
    config = run / "config.yaml"
    if not config.is_file():
        raise ValueError(f"{run} holds no config.yaml: give the directory of a run started by `flcog fit`")
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "LightningCLI's args parameter"
        )  # it takes the words of our own command for its options
        return CommandCLI(["--config", str(config), "--trainer.logger", "false", *_devices_here(config), *options])


def _devices_here(config: Path) -> list[str]:
    """Options that put a device of this machine in the place of those that a run had, where they are not here."""
    try:
        asked = yaml.safe_load(config.read_text(encoding="utf-8"))["trainer"]
        accelerator, devices = asked["accelerator"], asked["devices"]
    except (yaml.YAMLError, KeyError, TypeError):
        return []  # what is wrong with the file is told where all of it is read
    try:
        make_fabric(accelerator, "auto", devices, 1, "32-true", [])
    except ValueError:
        print(f"this machine lacks the run's accelerator={accelerator}, devices={devices}: one device of its own does instead")
        return ["--trainer.accelerator", "auto", "--trainer.strategy", "auto", "--trainer.devices", "1"]
    return []


def checkpoint_of(run: Path, given: str | None) -> Path:
    """``best``, ``last`` or a file; by default the best model, or the last where none was evaluated."""
    folder = run / "checkpoints"
    names = ("best", "last") if given is None else (given,)
    paths = [folder / f"{name}.ckpt" if name in ("best", "last") else Path(name) for name in names]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise ValueError(f"no checkpoint at {paths[-1]}: give best, last, or a file under {folder}")
    return found
