"""The command ``flcog predict``: what a run's model says of its test set, or of other inputs, as a file."""

from pathlib import Path
from typing import Any

import numpy as np

from flcog.commands.of_a_run import checkpoint_of, open_run
from flcog.core.commands import parser_of
from flcog.core.files import short
from flcog.run.directory import own_file
from flcog.run.predictions import write_predictions


def predict(arguments: list[str]) -> None:
    """Write the predictions of a run's model for its test set, or for your own inputs, as CSV or .npz.

    Your inputs have the form in which the data set stores them: images uint8 and channels last, before any normalisation.
    """
    parser = parser_of("predict", predict)
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument("--inputs", type=Path, help="an array in an .npy, or one or several by name in an .npz")
    parser.add_argument("--checkpoint", help="best (by default), last, or a file")
    parser.add_argument("--output", type=Path, help="a .csv or .npz; predictions.csv in the run's directory by default")
    options = parser.parse_args(arguments)
    output = options.output or own_file(options.run, "predictions.csv")
    if output.suffix not in (".csv", ".npz"):
        raise ValueError(f"predictions are written as .csv or .npz; got {output}")
    checkpoint = checkpoint_of(options.run, options.checkpoint)
    inputs = None if options.inputs is None else read_inputs(options.inputs)
    cli = open_run(options.run)
    predictions = cli.trainer.predict(cli.model, cli.datamodule, str(checkpoint), inputs)
    write_predictions(output, predictions, cli.datamodule.class_names)
    print(f"{short(output)}: {len(next(iter(predictions.values()))):,} samples, by {short(checkpoint)}")


def read_inputs(path: Path) -> Any:
    """The array in the file; several as a dict."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return content
        with content:
            arrays = {name: content[name] for name in content.files}
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as .npy or .npz: {error}") from None
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays
