"""The commands ``flcog predict`` and ``flcog export``, and what all commands share that read a run.

They make its trainer, model and data from its config, and find its checkpoint.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from flcog.commands.federated_cli import CommandCLI
from flcog.core.commands import parser_of
from flcog.core.files import short
from flcog.method import Personalisation, method_of
from flcog.run.export import SUFFIXES
from flcog.run.predictions import by_name, write_predictions
from flcog.run.saved_run import SavedRun

IMPORT_FROM = (
    "a folder with your own modules that the run's config names. Without it nothing is imported from the run's folder or the working "
    "directory, because a run may come from a stranger"
)
"""The help of the option ``--import-from``."""


def predict(arguments: list[str]) -> None:
    """Write the predictions of a run's model for its test set, or for your own inputs, as CSV or .npz.

    Inputs are prepared as the training set is: a table's rows, images and texts. Arrays are given as the data set stores them: images
    are uint8, channels last, before any normalisation.
    """
    parser = _parser("predict", predict, "a .csv or .npz; predictions.csv in the run's directory by default")
    inputs = "a table (.csv, .tsv, .parquet), an image or a folder of images, lines of text (.txt), or arrays (.npy, .npz)"
    parser.add_argument("--inputs", type=Path, help=inputs)
    options = parser.parse_args(arguments)
    output = options.output or options.run / "predictions.csv"
    if output.suffix not in (".csv", ".npz"):
        raise ValueError(f"predictions are written as .csv or .npz; got {output}")
    checkpoint = checkpoint_of(options.run, options.checkpoint)
    cli = open_run(options.run, options.import_from)
    predictions = by_name(cli.trainer.predict(cli.model, cli.datamodule, str(checkpoint), options.inputs, options.client))
    write_predictions(output, predictions, getattr(cli.datamodule, "class_names", None))  # Lightning's have none
    print(
        f"{short(output)}: {len(next(iter(predictions.values()))):,} samples, by {_model(cli, options.client)} of {short(checkpoint)}"
    )


def export(arguments: list[str]) -> None:
    """Write a run's trained network for others: a torch state dict, safetensors, ONNX, or LoRA's adapters for peft."""
    files = "the file; model.pt, model.safetensors, model.onnx or the folder model in the run's directory"
    parser = _parser("export", export, files)
    formats = "state_dict by default, as torch.load reads it"
    # A shell's completion reads the names from here.
    parser.add_argument("--format", choices=["state_dict", "safetensors", "onnx", "peft"], default="state_dict", help=formats)
    options = parser.parse_args(arguments)
    output = options.output or options.run / f"model{SUFFIXES.get(options.format, '')}"
    checkpoint = checkpoint_of(options.run, options.checkpoint)
    cli = open_run(options.run, options.import_from)
    cli.trainer.export(output, options.format, cli.model, cli.datamodule, str(checkpoint), options.client)
    print(f"{short(output)}: {_model(cli, options.client)} of {short(checkpoint)}")


def _model(cli: CommandCLI, client: int | None) -> str:
    other = " (--client 0 for a client's own)" if method_of(cli.trainer.methods, Personalisation) is not None else ""
    return f"the global model{other}" if client is None else f"client {client}'s own model"


def _parser(name: str, command: Callable[[list[str]], None], output: str) -> argparse.ArgumentParser:
    """The parser of a command that reads a run's model and writes a file."""
    parser = parser_of(name, command)
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument("--checkpoint", help="best (by default), last, or a file")
    parser.add_argument("--client", type=int, help="the number of a client, whose own model is taken instead of the global one")
    parser.add_argument("--output", type=Path, help=output)
    parser.add_argument("--import-from", type=Path, metavar="FOLDER", help=IMPORT_FROM)
    return parser


def import_only_from(folder: Path | None) -> None:
    """Import modules from the installed packages and from ``folder``, but not from the working directory.

    ``python -m flcog`` puts the working directory on Python's path, where an installed script does not.
    """
    if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
        del sys.path[0]
    if folder is not None:
        sys.path.append(str(folder.resolve()))


def open_run(run: Path, import_from: Path | None) -> CommandCLI:
    """Make the trainer, model and data of a run from its config.yaml, on one device of this machine and without trackers."""
    import_only_from(import_from)
    config = SavedRun(run).file("config.yaml")
    here = ["--trainer.accelerator", "auto", "--trainer.strategy", "auto", "--trainer.devices", "1"]  # the run's may be elsewhere
    return CommandCLI(["--config", str(config), "--trainer.logger", "false", *here], modules=None)


def checkpoint_of(run: Path, given: str | None) -> Path:
    """Find a checkpoint: ``best``, ``last`` or a file. By default the best model, or the last if no round was evaluated."""
    if given is not None and given not in ("best", "last"):
        return Path(given)
    best, last = (run / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))
    return best if given == "best" or (given is None and best.is_file()) else last
