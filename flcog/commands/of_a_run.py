"""What commands on a finished run share: its trainer, model and data made again from its config, and its checkpoint."""

import warnings
from pathlib import Path

from flcog.commands.lightning_cli import FederatedCLI


def open_run(run: Path, *options: str) -> FederatedCLI:
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
        return FederatedCLI(["--config", str(config), "--trainer.logger", "false", *options])


def checkpoint_of(run: Path, given: str | None) -> Path:
    """``best``, ``last`` or a file; by default the best model, or the last where none was evaluated."""
    folder = run / "checkpoints"
    names = ("best", "last") if given is None else (given,)
    paths = [folder / f"{name}.ckpt" if name in ("best", "last") else Path(name) for name in names]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise ValueError(f"no checkpoint at {paths[-1]}: give best, last, or a file under {folder}")
    return found
