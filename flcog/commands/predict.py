"""The command ``flcog predict``: writes a model's predictions for its test set, or for other inputs, as a file."""

from pathlib import Path
from typing import Any

import numpy as np

from flcog.commands.of_a_run import IMPORT_FROM, checkpoint_of, open_run
from flcog.core.commands import parser_of
from flcog.core.files import short
from flcog.run.predictions import by_name, write_predictions


def predict(arguments: list[str]) -> None:
    """Write the predictions of a run's model for its test set, or for your own inputs, as CSV or .npz.

    Give your inputs as the data set stores them: images are uint8, channels last, before any normalisation.
    """
    parser = parser_of("predict", predict)
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument("--inputs", type=Path, help="an array in an .npy, or one or several by name in an .npz")
    parser.add_argument("--checkpoint", help="best (by default), last, or a file")
    parser.add_argument("--output", type=Path, help="a .csv or .npz; predictions.csv in the run's directory by default")
    parser.add_argument("--import-from", type=Path, metavar="FOLDER", help=IMPORT_FROM)
    options = parser.parse_args(arguments)
    output = options.output or options.run / "predictions.csv"
    if output.suffix not in (".csv", ".npz"):
        raise ValueError(f"predictions are written as .csv or .npz; got {output}")
    checkpoint = checkpoint_of(options.run, options.checkpoint)
    inputs = None if options.inputs is None else read_inputs(options.inputs)
    cli = open_run(options.run, options.import_from)
    predictions = by_name(cli.trainer.predict(cli.model, cli.datamodule, str(checkpoint), inputs))
    write_predictions(output, predictions, getattr(cli.datamodule, "class_names", None))  # Lightning's have none
    print(f"{short(output)}: {len(next(iter(predictions.values()))):,} samples, by {short(checkpoint)}")


def read_inputs(path: Path) -> Any:
    """The array in the file, or a dictionary of several arrays."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}: give an .npy or an .npz")
    try:
        # A memory map allocates no memory for the sizes that a damaged header declares.
        content = np.load(path, mmap_mode="r", allow_pickle=False)
        arrays = {name: content[name] for name in content.files} if isinstance(content, np.lib.npyio.NpzFile) else {"": content}
    except Exception as error:  # readers of archives raise nearly every kind of error on damaged files
        raise ValueError(f"{path} cannot be read as .npy or .npz, as numpy.save and numpy.savez write them ({error})") from error
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc" or array.ndim == 0 or len(array) == 0:
            raise ValueError(
                f"{path}: {name or 'the array'} is of type {array.dtype} and shape {list(array.shape)}: inputs are numbers, a sample "
                "in each row"
            )
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays
